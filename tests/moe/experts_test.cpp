#include "dtopp/moe/experts.h"

#include <random>
#include <set>

#include <gtest/gtest.h>

namespace dtopp::moe {
namespace {

int64_t limit_after(CapacityPredictor& limits, int64_t pairs) {
  limits.observe(std::vector{pairs});
  return limits.capacity_L().at(0);
}

TEST(CapacityPredictor, rooms_hold_the_margin_and_hardly_more) {
  for (int64_t pairs = 1; pairs < (int64_t{1} << 40); pairs += pairs / 7 + 1) {
    const auto least = 1.25 * static_cast<double>(pairs);
    EXPECT_GT(static_cast<double>(round_up_capacity(static_cast<double>(pairs))), least);
    EXPECT_LE(static_cast<double>(round_up_capacity(static_cast<double>(pairs))), least * (1 + 1.0 / 32) + 1);
  }
}

// The largest number of token-expert pairs over 32 micro-batches varies by a few per cent.
TEST(CapacityPredictor, are_of_few_sizes_where_numbers_wander) {
  CapacityPredictor limits(kCapacityMargin);
  std::mt19937 random(1);
  std::normal_distribution<double> wander(1, 0.02);
  std::set<int64_t> sizes;
  for (int step = 0; step < 1000; ++step) {
    const double mean = 131072 * (step < 500 ? 1.0 : 1.05);
    const auto pairs = static_cast<int64_t>(mean * wander(random));
    const int64_t before = limits.capacity_L().empty() ? INT64_MAX : limits.capacity_L()[0];
    EXPECT_LE(pairs, before) << step;
    sizes.insert(limit_after(limits, pairs));
  }
  EXPECT_LE(sizes.size(), 3U);
}

TEST(CapacityPredictor, follow_numbers_that_change) {
  CapacityPredictor limits(kCapacityMargin);
  const int64_t first = limit_after(limits, 1000);
  EXPECT_EQ(limit_after(limits, 1050), first);
  EXPECT_GE(limit_after(limits, 1200), 1500);
  EXPECT_LE(limit_after(limits, 500), 650);
  EXPECT_EQ(limit_after(limits, 0), 1);  // 0 would remove the limit
  limits.forget();
  EXPECT_TRUE(limits.capacity_L().empty());
}

TEST(CapacityPredictor, without_a_margin_there_are_none) {
  CapacityPredictor limits;
  limits.observe(std::vector<int64_t>{5});
  EXPECT_TRUE(limits.capacity_L().empty());
}

}  // namespace

}  // namespace dtopp::moe
