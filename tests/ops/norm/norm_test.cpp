#include "dtopp/ops/norm/norm.h"

#include <gtest/gtest.h>

#include "tests/ops/same_gradients.h"

namespace dtopp::ops::norm_test {
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

// bf16 rounds the result once, by up to 2^-8 of it.
TEST(Norm, and_its_gradients_match_double_precision) {
  at::manual_seed(2);
  for (const int64_t tokens : {0, 1, 64, 150}) {
    for (const auto& [type, bound] : kTypes) {
      for (const bool centered : {false, true}) {
        SCOPED_TRACE(testing::Message() << tokens << " tokens, " << type << (centered ? ", centered" : ""));
        std::vector<at::Tensor> in, exact;
        for (const auto& sizes : {std::vector<int64_t>{tokens, 77}, std::vector<int64_t>{77}}) {
          in.push_back((at::randn(sizes) * 2 + 1).to(type).requires_grad_());
          exact.push_back(in.back().detach().to(at::kDouble).requires_grad_());
        }
        expect_same_gradients(norm(in[0], in[1], kEps, centered).y,
                              norm(exact[0], exact[1], kEps, centered).y, in, exact, bound);
      }
    }
  }
}

TEST(Norm, is_the_formula) {
  const at::Tensor x = at::tensor({3.0F, 1.0F}), gain = at::tensor({10.0F, 20.0F});
  const float root = std::sqrt(5.0F);
  EXPECT_TRUE(at::allclose(norm(x, gain, 0, true).y, at::tensor({10.0F, -20.0F})));
  EXPECT_TRUE(at::allclose(norm(x, gain, 0, false).y, at::tensor({30 / root, 20 / root})));
}

// The sum of both gradients of x, computed in one pass, is that of autograd.
TEST(Normed, continues_with_its_input) {
  at::manual_seed(5);
  for (const auto& [type, bound] : kTypes) {
    for (const bool modulated : {false, true}) {
      SCOPED_TRACE(testing::Message() << type << (modulated ? ", modulated" : ""));
      const Arguments a({2, 70, 33}, 1, type);
      const auto residual = [&](const std::vector<at::Tensor>& in) {
        const Normed normed = modulated ? modulated_norm(in[0], in[1], in[2], kEps)
                                        : norm(in[0], in[1].select(0, 0).flatten(), kEps, true);
        return normed.x + 3 * normed.y + 0 * in[1].sum() + 0 * in[2].sum();
      };
      expect_same_gradients(residual(a.in), residual(a.exact), a.in, a.exact, 2 * bound);
    }
  }
}

TEST(Normed, has_the_gradient_of_its_input_alone) {
  const at::Tensor x = at::randn({3, 8}).requires_grad_(), gain = at::randn({8}).requires_grad_();
  const Normed normed = norm(x, gain, kEps, true);
  EXPECT_TRUE(at::equal(normed.x, x));
  normed.x.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::ones({3, 8})));
  EXPECT_FALSE(gain.grad().defined());
}

TEST(Norm, a_row_does_not_depend_on_the_other_rows) {
  const at::Tensor x = at::randn({150, 1000}), gain = at::randn({1000});
  const at::Tensor all = norm(x, gain, kEps, false).y;
  EXPECT_TRUE(at::equal(all.narrow(0, 60, 7), norm(x.narrow(0, 60, 7), gain, kEps, false).y));
}

TEST(ModulatedNorm, and_its_gradients_match_double_precision) {
  at::manual_seed(3);
  for (const Case& test : kCases) {
    for (const auto& [type, bound] : kTypes) {
      SCOPED_TRACE(testing::Message() << test.samples << " x " << test.tokens << " x " << test.hidden);
      const Arguments a(test, 1, type);
      expect_same_gradients(modulated_norm(a.in[0], a.in[1], a.in[2], kEps).y,
                            modulated_norm(a.exact[0], a.exact[1], a.exact[2], kEps).y, a.in, a.exact, bound);
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
  const at::Tensor y = modulated_norm(x, shift, scale, 0).y;
  EXPECT_TRUE(at::allclose(y.flatten(), at::tensor({12.0F, 18.0F})));
}

TEST(Norm, an_overflow_is_not_hidden) {
  const at::Tensor x = at::tensor({1e30F, -1e30F}).view({1, 1, 2}), row = at::ones({1, 1, 2});
  EXPECT_TRUE(norm(x, row.flatten(), kEps, false).y.isnan().all().item<bool>());
  EXPECT_TRUE(modulated_norm(x, row, row, kEps).y.isnan().all().item<bool>());
}

TEST(ModulatedNorm, gradients_do_not_depend_on_the_number_of_threads) {
  const Arguments a({2, 200, 40}, 1, at::kFloat);
  const at::Tensor grad = at::randn({2, 200, 40});
  const auto gradients = [&](int threads) {
    at::set_num_threads(threads);
    return torch::autograd::grad({modulated_norm(a.in[0], a.in[1], a.in[2], kEps).y}, a.in, {grad});
  };
  const auto one = gradients(1), two = gradients(2);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], two[i]));
}

TEST(Norm, refuses_a_gain_that_does_not_fit) {
  EXPECT_THROW(norm(at::randn({2, 3}), at::ones({2}), kEps, false), c10::Error);
  EXPECT_THROW(norm(at::randn({2, 3}), at::ones({3}, at::kBFloat16), kEps, false), c10::Error);
  EXPECT_THROW(norm(at::scalar_tensor(1.0F), at::ones({1}), kEps, false), c10::Error);
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
}  // namespace dtopp::ops::norm_test
