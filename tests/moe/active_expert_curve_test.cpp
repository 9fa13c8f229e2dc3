#include "dtopp/moe/active_expert_curve.h"

#include <gtest/gtest.h>

#include "dtopp/ops/route/cumulative_prob_bins.h"

namespace dtopp::moe {
namespace {

at::Tensor histogram_of(const std::vector<double>& cumulative_probs) {
  at::Tensor counts_CM = at::zeros({1, ops::kCumulativeProbBins}, at::kLong);
  for (const double cumulative_prob : cumulative_probs)
    counts_CM[0][ops::cumulative_prob_bin(cumulative_prob)] += 1;
  return counts_CM;
}

at::Tensor one(double value) { return at::full({1}, value, at::kDouble); }

TEST(CumulativeProbBins, lie_between_their_edges) {
  const auto edges = ops::cumulative_prob_edges();
  EXPECT_EQ(edges.front(), 0.0);
  EXPECT_EQ(edges.back(), 1.0);
  for (int i = 0; i < ops::kCumulativeProbBins; ++i) {
    ASSERT_LT(edges[i], edges[i + 1]) << i;
    ASSERT_EQ(ops::cumulative_prob_bin((edges[i] + edges[i + 1]) / 2), i);
    ASSERT_EQ(ops::cumulative_prob_bin(edges[i < ops::kCumulativeProbBinsOfHalf ? i : i + 1]), i);
  }
  EXPECT_EQ(ops::cumulative_prob_bin(1.0F), ops::kCumulativeProbBins - 1);
  EXPECT_EQ(ops::cumulative_prob_bin(1.0000001F),
            ops::kCumulativeProbBins - 1);  // rounding may give a sum above 1
  EXPECT_EQ(ops::cumulative_prob_bin(0.0F), 0);
}

TEST(CumulativeProbBins, are_narrow_beside_the_distance_to_the_nearer_end) {
  const auto edges = ops::cumulative_prob_edges();
  for (int i = 1; i < ops::kCumulativeProbBins - 1; ++i) {
    const double near = std::min(edges[i + 1], 1 - edges[i]);
    ASSERT_LE(edges[i + 1] - edges[i], near / 64 + 1e-18) << i;
  }
}

TEST(ActiveExpertCurve, counts_masses_below_p_and_finds_p_of_a_count) {
  std::vector<double> cumulative_probs;
  for (int i = 1; i <= 1000; ++i) cumulative_probs.push_back(i / 1001.0);
  const ActiveExpertCurve curve(histogram_of(cumulative_probs), cumulative_prob_bin_edges(at::kCPU));
  for (const double p : {1e-6, 0.001, 0.1, 0.25, 0.5, 0.77, 0.999}) {
    EXPECT_NEAR(curve.below(one(p)).item<double>(), p * 1001, 1.5) << p;
    const double count = std::clamp(p * 1000, 1.0, 998.0);
    EXPECT_NEAR(curve.below(curve.threshold(one(count))).item<double>(), count, 1e-9) << p;
  }
  EXPECT_EQ(curve.threshold(one(0)).item<double>(), kMinThreshold);
  EXPECT_EQ(curve.threshold(one(-3)).item<double>(), kMinThreshold);
  EXPECT_EQ(curve.threshold(one(1000)).item<double>(), kMaxThreshold);
}

TEST(ActiveExpertCurve, controllers_have_their_own) {
  const at::Tensor two = at::cat({histogram_of({0.1, 0.2}), histogram_of({0.8, 0.9})});
  const ActiveExpertCurve curve(two, cumulative_prob_bin_edges(at::kCPU));
  EXPECT_EQ(curve.below(at::full({2}, 0.5, at::kDouble)).sum().item<double>(), 2);
  const at::Tensor p_C = curve.threshold(at::full({2}, 1.0, at::kDouble));
  EXPECT_NEAR(p_C[0].item<double>(), 0.1, 0.002);
  EXPECT_NEAR(p_C[1].item<double>(), 0.8, 0.004);
}

TEST(ActiveExpertCurve, of_no_masses_gives_the_bounds) {
  const ActiveExpertCurve curve(histogram_of({}), cumulative_prob_bin_edges(at::kCPU));
  EXPECT_EQ(curve.below(one(0.5)).item<double>(), 0);
  EXPECT_EQ(curve.threshold(one(0.5)).item<double>(), kMaxThreshold);
}

}  // namespace
}  // namespace dtopp::moe
