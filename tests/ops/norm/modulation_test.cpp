#include "dtopp/ops/norm/modulation.h"

#include <gtest/gtest.h>

#include "tests/ops/same_gradients.h"

namespace dtopp::ops::modulation_test {
namespace {

constexpr double kEps = 1e-6;

struct Case {
  int64_t samples, tokens, hidden;
};

constexpr Case kCases[] = {{0, 3, 8}, {2, 0, 8}, {1, 1, 5}, {3, 64, 33}, {2, 150, 96}};
constexpr std::pair<at::ScalarType, double> kTypes[] = {{at::kFloat, 1e-5}, {at::kBFloat16, 1.0 / 256}};

// Three tensors [B, S, D], [B, 1, D] and [B, `third`, D], and the same in double.
struct Arguments {
  std::vector<at::Tensor> in, exact;

  Arguments(const Case& test, int64_t third, at::ScalarType type) {
    for (const int64_t rows : {test.tokens, int64_t{1}, third}) {
      in.push_back((at::randn({test.samples, rows, test.hidden}) * 2 + 1).to(type).requires_grad_());
      exact.push_back(in.back().detach().to(at::kDouble).requires_grad_());
    }
  }
};

TEST(ModulatedNorm, and_its_gradients_match_double_precision) {
  at::manual_seed(3);
  for (const Case& test : kCases) {
    for (const auto& [type, bound] : kTypes) {
      SCOPED_TRACE(testing::Message() << test.samples << " x " << test.tokens << " x " << test.hidden);
      const Arguments a(test, 1, type);
      expect_same_gradients(modulated_norm(a.in[0], a.in[1], a.in[2], kEps),
                            modulated_norm(a.exact[0], a.exact[1], a.exact[2], kEps), a.in, a.exact, bound);
    }
  }
}

TEST(AddGated, and_its_gradients_match_double_precision) {
  at::manual_seed(4);
  for (const Case& test : kCases) {
    for (const auto& [type, bound] : kTypes) {
      SCOPED_TRACE(testing::Message() << test.samples << " x " << test.tokens << " x " << test.hidden);
      const Arguments a(test, test.tokens, type);
      expect_same_gradients(add_gated(a.in[0], a.in[1], a.in[2]),
                            add_gated(a.exact[0], a.exact[1], a.exact[2]), a.in, a.exact, bound);
    }
  }
}

TEST(ModulatedNorm, normalizes_then_scales_and_shifts) {
  const at::Tensor x = at::tensor({5.0F, 1.0F}).view({1, 1, 2});
  const at::Tensor shift = at::tensor({10.0F, 20.0F}).view({1, 1, 2}), scale = at::ones({1, 1, 2});
  const at::Tensor y = modulated_norm(x, shift, scale, 0);
  EXPECT_TRUE(at::allclose(y.flatten(), at::tensor({12.0F, 18.0F})));
}

TEST(ModulatedNorm, an_overflow_is_not_hidden) {
  const at::Tensor x = at::tensor({1e30F, -1e30F}).view({1, 1, 2}), row = at::zeros({1, 1, 2});
  EXPECT_TRUE(modulated_norm(x, row, row, kEps).isnan().all().item<bool>());
}

TEST(ModulatedNorm, gradients_do_not_depend_on_the_number_of_threads) {
  const Arguments a({2, 200, 40}, 1, at::kFloat);
  const at::Tensor grad = at::randn({2, 200, 40});
  const auto gradients = [&](int threads) {
    at::set_num_threads(threads);
    return torch::autograd::grad({modulated_norm(a.in[0], a.in[1], a.in[2], kEps)}, a.in, {grad});
  };
  const auto one = gradients(1), two = gradients(2);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], two[i]));
}

TEST(Modulation, refuses_shapes_that_do_not_fit) {
  const at::Tensor x = at::randn({2, 3, 4}), row = at::randn({2, 1, 4});
  EXPECT_THROW(modulated_norm(x, row, at::randn({2, 3, 4}), kEps), c10::Error);
  EXPECT_THROW(modulated_norm(x, at::randn({1, 1, 4}), row, kEps), c10::Error);
  EXPECT_THROW(modulated_norm(x.view({6, 4}), row, row, kEps), c10::Error);
  EXPECT_THROW(add_gated(x, row, row), c10::Error);
  EXPECT_THROW(add_gated(x, row.to(at::kBFloat16), x), c10::Error);
}

}  // namespace
}  // namespace dtopp::ops::modulation_test
