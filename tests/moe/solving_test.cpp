#include "dtopp/moe/solving.h"

#include <cmath>
#include <random>

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

// The mean number of the likeliest experts whose probabilities reach p, of tokens with normal logits.
class Tokens {
 public:
  Tokens(int64_t experts, double scale) {
    std::mt19937_64 random(static_cast<uint64_t>(experts));
    std::normal_distribution<double> logit(0, scale);
    for (int64_t token = 0; token < kTokens; ++token) {
      std::vector<double> weights(static_cast<size_t>(experts));
      double sum = 0;
      for (double& weight : weights) sum += weight = std::exp(logit(random));
      std::ranges::sort(weights, std::greater());
      double before = 0;
      for (const double weight : weights) {
        begins_.push_back(before / sum);
        before += weight;
      }
    }
    std::ranges::sort(begins_);
  }
  double count(double p) const {
    return static_cast<double>(std::ranges::lower_bound(begins_, p) - begins_.begin()) / kTokens;
  }

 private:
  static constexpr int64_t kTokens = 4000;
  std::vector<double> begins_;  // the probability before each expert, which is selected if it is below p
};

TEST(SolveThreshold, meets_the_target_after_about_nine_counts) {
  int calls = 0, solved = 0;
  for (const int64_t experts : {2, 8, 64}) {
    for (const double scale : {0.3, 1.0, 3.0}) {
      const Tokens tokens(experts, scale);
      for (int64_t target = 1; 4 * target <= 3 * experts; ++target, ++solved) {
        const auto wanted = static_cast<double>(target);
        const double p = solve_threshold(wanted, [&](double at) { return ++calls, tokens.count(at); });
        EXPECT_NEAR(tokens.count(p), wanted, 1e-4 * wanted + 3e-4) << experts << " " << scale;
      }
    }
  }
  EXPECT_LE(calls, 10 * solved);
}

TEST(SolveThreshold, ends_where_the_count_jumps_over_the_target) {
  int calls = 0;
  const double p = solve_threshold(7, [&](double at) { return ++calls, at < 0.3 ? 5.0 : 9.0; });
  EXPECT_NEAR(p, 0.3, 1e-11);
  EXPECT_LE(calls, 52);
}

TEST(SolveThreshold, ends_at_the_limits_that_no_p_passes) {
  int calls = 0;
  const auto count = [&](double) { return ++calls, 5.0; };
  EXPECT_EQ(solve_threshold(8, count), kMaxThreshold);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(solve_threshold(3, count), kMinThreshold);
}

}  // namespace

}  // namespace dtopp::moe
