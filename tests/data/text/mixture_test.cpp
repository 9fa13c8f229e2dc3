#include "dtopp/data/text/mixture.h"

#include <cmath>
#include <numeric>
#include <set>
#include <stdexcept>

#include <gtest/gtest.h>

namespace dtopp::data {
namespace {

std::vector<double> shares_of(const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> shares;
  for (const double weight : weights) shares.push_back(weight / sum);
  return shares;
}

// The largest distance, over every window of `length` among the first samples, from a source's share of it.
double furthest(const std::vector<double>& weights, uint64_t length, uint64_t samples) {
  const Mixture mixture(weights);
  const std::vector<double> shares = shares_of(weights);
  std::vector<std::vector<uint64_t>> before(weights.size(), {0});  // counted by the test, not by count()
  for (uint64_t i = 0; i < samples; ++i) {
    for (size_t s = 0; s < weights.size(); ++s)
      before[s].push_back(before[s].back() + (mixture.source(i) == s ? 1 : 0));
  }
  double most = 0;
  for (size_t s = 0; s < weights.size(); ++s) {
    for (uint64_t i = 0; i + length <= samples; ++i) {
      const auto count = static_cast<double>(before[s][i + length] - before[s][i]);
      most = std::max(most, std::abs(count - shares[s] * static_cast<double>(length)));
    }
  }
  return most;
}

TEST(Mixture, any_10000_samples_hold_whole_shares_exactly) {
  for (const auto& weights : std::vector<std::vector<double>>{
           {0.7, 0.3}, {1, 1}, {0.5, 0.25, 0.25}, {0.62, 0.2, 0.1, 0.05, 0.03}, {9999, 1}, {7}})
    EXPECT_LT(furthest(weights, 10000, 40000), 1e-6);
}

TEST(Mixture, any_samples_hold_shares_of_two_sources_within_one) {
  for (const auto& weights : std::vector<std::vector<double>>{
           {1, 2}, {0.3, 0.31}, {1, 99.5}, {1.0, std::sqrt(2.0)}, {3.14159e11, 2.71828e9}}) {
    for (const uint64_t length : {10U, 997U, 10000U}) EXPECT_LE(furthest(weights, length, 30000), 1.01);
  }
}

TEST(Mixture, any_samples_hold_shares_of_many_sources_within_two) {
  const std::vector<double> many = {std::sqrt(2.0), std::sqrt(3.0), std::sqrt(5.0), 0.01, 7, 11.3, 0.37};
  for (const auto& weights :
       std::vector<std::vector<double>>{{1, 1, 1}, {1, 2, 4}, {0.9, 0.05, 0.03}, many}) {
    for (const uint64_t length : {13U, 1000U, 10000U}) EXPECT_LT(furthest(weights, length, 30000), 2.01);
  }
}

TEST(Mixture, the_pattern_is_as_short_as_the_weights_allow) {
  EXPECT_EQ(Mixture({0.7, 0.3}).pattern_length(), 10U);
  EXPECT_EQ(Mixture({2, 4}).pattern_length(), 3U);
  EXPECT_EQ(Mixture({0.001, 0.998, 0.001}).pattern_length(), 1000U);
  EXPECT_EQ(Mixture({1, std::sqrt(2.0)}).pattern_length(), Mixture::kLongestPattern);
}

TEST(Mixture, a_source_of_hardly_any_weight_comes_once_in_a_pattern) {
  const Mixture mixture({1e-30, 1, 3e200});
  EXPECT_EQ(mixture.count(0, Mixture::kLongestPattern), 1U);
  EXPECT_EQ(mixture.count(1, Mixture::kLongestPattern), 1U);
}

TEST(Mixture, counts_what_comes_before_a_position) {
  const Mixture mixture({0.5, 0.2, 0.3});
  std::vector<uint64_t> counted(3);
  for (uint64_t i = 0; i < 95; ++i) {
    for (size_t s = 0; s < 3; ++s) EXPECT_EQ(mixture.count(s, i), counted[s]) << i;
    ++counted[mixture.source(i)];
  }
}

TEST(Mixture, impossible_weights_are_refused) {
  EXPECT_THROW(Mixture({}), std::invalid_argument);
  EXPECT_THROW(Mixture({1, 0}), std::invalid_argument);
  EXPECT_THROW(Mixture({1, std::nan("")}), std::invalid_argument);
}

TEST(MixedOrder, each_source_goes_through_epochs_of_its_own) {
  const std::vector<uint64_t> sizes = {40, 7};
  const MixedOrder order({3, 1}, sizes, 5);
  std::vector<std::vector<uint64_t>> seen(2);
  for (uint64_t i = 0; i < 400; ++i) {
    const auto draw = order(i);
    seen[draw.source].push_back(draw.index);
  }
  EXPECT_EQ(seen[0].size(), 300U);
  for (size_t s = 0; s < 2; ++s) {
    std::set<std::vector<uint64_t>> orders;
    for (size_t first = 0; first + sizes[s] <= seen[s].size(); first += sizes[s]) {
      const auto begin = seen[s].begin() + static_cast<std::ptrdiff_t>(first);
      const std::vector<uint64_t> epoch(begin, begin + static_cast<std::ptrdiff_t>(sizes[s]));
      EXPECT_EQ(std::set(epoch.begin(), epoch.end()).size(), sizes[s]);
      EXPECT_LT(*std::ranges::max_element(epoch), sizes[s]);
      orders.insert(epoch);
    }
    EXPECT_GT(orders.size(), 6U);
  }
  EXPECT_DOUBLE_EQ(order.share(0, 400), 0.75);
  EXPECT_DOUBLE_EQ(order.epochs(0, 400), 7.5);
  EXPECT_DOUBLE_EQ(order.epochs(1, 400), 100.0 / 7);
  EXPECT_EQ(order.share(1, 0), 0);
}

}  // namespace

}  // namespace dtopp::data
