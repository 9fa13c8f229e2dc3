#include "dtopp/moe/routers/solving.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "dtopp/moe/active_expert_curve.h"

namespace dtopp::moe {
namespace {

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
