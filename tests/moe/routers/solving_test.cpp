#include "dtopp/moe/routers/solving.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "dtopp/moe/active_expert_curve.h"

namespace dtopp::moe {
namespace {

// Plain bisection, which evaluates every midpoint.
double plain_bisection(double target, c10::function_ref<double(double)> count) {
  double low = kMinThreshold, high = kMaxThreshold;
  for (int i = 0; i < 40; ++i) {
    const double middle = low + (high - low) / 2;
    const double experts = count(middle);
    if (std::abs(experts - target) <= 1e-4 * target) return middle;
    (experts < target ? low : high) = middle;
  }
  return low + (high - low) / 2;
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

TEST(BisectThreshold, ends_where_plain_bisection_does_whatever_is_known) {
  for (const int64_t experts : {2, 8, 64}) {
    for (const double scale : {0.3, 1.0, 3.0}) {
      const Tokens tokens(experts, scale);
      KnownCounts growing;
      std::vector<int64_t> targets(static_cast<size_t>(experts));
      for (size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<int64_t>(i) + 1;
      std::ranges::shuffle(targets, std::mt19937_64(7));
      for (const int64_t target : targets) {
        const auto count = [&](double p) { return tokens.count(p); };
        const double expected = plain_bisection(static_cast<double>(target), count);
        KnownCounts none;
        EXPECT_EQ(bisect_threshold(static_cast<double>(target), count, none), expected);
        EXPECT_EQ(bisect_threshold(static_cast<double>(target), count, growing), expected);
      }
    }
  }
}

TEST(BisectThreshold, counts_few_times_near_known_neighbors) {
  const Tokens tokens(64, 1);
  KnownCounts known;
  int calls = 0, plain_calls = 0;
  const auto solve = [&](int64_t target) {
    bisect_threshold(
        static_cast<double>(target), [&](double p) { return ++calls, tokens.count(p); }, known);
  };
  for (int64_t target = 1; target <= 64; target += 2) solve(target);
  calls = 0;
  for (int64_t target = 2; target < 64; target += 2) {
    solve(target);
    plain_bisection(static_cast<double>(target), [&](double p) { return ++plain_calls, tokens.count(p); });
  }
  EXPECT_LE(calls, 6 * 31);
  EXPECT_GE(plain_calls, 2 * calls);
}

TEST(BisectThreshold, finds_soon_that_no_p_reaches_the_target) {
  int calls = 0;
  KnownCounts known;
  const double p = bisect_threshold(
      8, [&](double) { return ++calls, 5.0; }, known);
  EXPECT_NEAR(p, kMaxThreshold, 1e-11);
  EXPECT_LE(calls, 10);
}

}  // namespace
}  // namespace dtopp::moe
