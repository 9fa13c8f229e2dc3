#include "dtopp/ops/norm/norm_by_row.h"

#include <gtest/gtest.h>

namespace dtopp::ops::norm_by_row_test {
namespace {

constexpr double kEps = 1e-5;

// bf16 rounds the result once, by up to 2^-8 of it.
TEST(NormByRow, matches_double_precision) {
  at::manual_seed(4);
  for (const auto& [dtype, bound] : {std::pair(at::kFloat, 1e-5), std::pair(at::kBFloat16, 1.0 / 256)}) {
    for (const int64_t tokens : {0, 1, 90}) {
      const at::Tensor x = (at::randn({tokens, 77}) * 3 + 1).to(dtype), gain = at::randn({77}).to(dtype);
      const at::Tensor exact_x = x.to(at::kDouble), exact_gain = gain.to(at::kDouble);
      const at::Tensor rms = exact_x / (exact_x.square().mean({-1}, true) + kEps).sqrt() * exact_gain;
      const at::Tensor centred =
          (exact_x - exact_x.mean({-1}, true)) /
          ((exact_x - exact_x.mean({-1}, true)).square().mean({-1}, true) + kEps).sqrt() * exact_gain;
      EXPECT_TRUE(at::allclose(norm_by_row(x, gain, kEps, false).to(at::kDouble), rms, bound, bound));
      EXPECT_TRUE(at::allclose(norm_by_row(x, gain, kEps, true).to(at::kDouble), centred, bound, bound));
    }
  }
}

TEST(NormByRow, a_row_does_not_depend_on_the_other_rows) {
  const at::Tensor x = at::randn({64, 1000}), gain = at::randn({1000});
  const at::Tensor all = norm_by_row(x, gain, kEps, false);
  EXPECT_TRUE(at::equal(all.narrow(0, 40, 3), norm_by_row(x.narrow(0, 40, 3), gain, kEps, false)));
}

TEST(NormByRow, an_overflow_is_not_hidden) {
  const at::Tensor x = at::full({1, 20}, 1e30F), gain = at::ones({20});
  EXPECT_TRUE(norm_by_row(x, gain, kEps, false).isnan().all().item<bool>());
}

TEST(NormByRow, refuses_a_gain_that_does_not_fit) {
  EXPECT_THROW(norm_by_row(at::randn({2, 3}), at::ones({2}), kEps, false), c10::Error);
  EXPECT_THROW(norm_by_row(at::randn({2, 3}), at::ones({3}, at::kBFloat16), kEps, false), c10::Error);
  EXPECT_THROW(norm_by_row(at::randn({2, 3}, at::kDouble), at::ones({3}, at::kDouble), kEps, false),
               c10::Error);
}

}  // namespace
}  // namespace dtopp::ops::norm_by_row_test
