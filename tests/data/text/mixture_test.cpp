#include "dtopp/data/text/mixture.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/base/scratch_directory.h"
#include "tests/data/token_fixtures.h"

namespace dtopp::data {
namespace {

// Streams of `sizes` tokens. All ids differ, so the ids of a window show its position.
std::vector<TokenStream> streams_of(const ScratchDirectory& scratch, const std::vector<int>& sizes) {
  std::vector<TokenStream> streams;
  uint16_t next = 0;
  for (const int size : sizes) {
    std::vector<uint16_t> ids(static_cast<size_t>(size));
    std::iota(ids.begin(), ids.end(), next);
    next = static_cast<uint16_t>(next + size);
    const auto path = scratch / ("s" + std::to_string(streams.size()) + ".npy");
    write_bytes(path, array_bytes(ids));
    streams.push_back(TokenStream::open(path));
  }
  return streams;
}

std::vector<int64_t> window_at(const WindowSampler& sampler, uint64_t index) {
  std::vector<int64_t> tokens(static_cast<size_t>(sampler.sequence_length()) + 1);
  sampler.window(index, tokens);
  return tokens;
}

std::vector<int64_t> sample_at(const WindowSampler& sampler, uint64_t position) {
  std::vector<int64_t> tokens(static_cast<size_t>(sampler.sequence_length()) + 1);
  sampler.sample(position, tokens);
  return tokens;
}

TEST(WindowSampler, windows_overlap_by_one_token_and_never_span_streams) {
  const ScratchDirectory scratch;
  // Tokens 0 to 8 hold windows at 0 and 4. Tokens 9 to 12 hold none: one token is missing. Tokens 13 to 17
  // hold exactly one. The last stream is empty.
  const WindowSampler sampler(streams_of(scratch, {9, 4, 5, 0}), 4, 1);
  ASSERT_EQ(sampler.num_windows(), 3U);
  EXPECT_EQ(window_at(sampler, 0), (std::vector<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(window_at(sampler, 1), (std::vector<int64_t>{4, 5, 6, 7, 8}));
  EXPECT_EQ(window_at(sampler, 2), (std::vector<int64_t>{13, 14, 15, 16, 17}));
  EXPECT_THROW(window_at(sampler, 3), std::out_of_range);
}

TEST(WindowSampler, every_token_but_a_streams_first_is_predicted_once_where_windows_fit) {
  const ScratchDirectory scratch;
  const WindowSampler sampler(streams_of(scratch, {101, 51}), 5, 1);
  std::map<int64_t, int> predicted;
  for (uint64_t i = 0; i < sampler.num_windows(); ++i) {
    const auto tokens = window_at(sampler, i);
    for (size_t j = 1; j < tokens.size(); ++j) ++predicted[tokens[j]];
  }
  EXPECT_EQ(predicted.size(), 150U);
  EXPECT_FALSE(predicted.contains(0));
  EXPECT_FALSE(predicted.contains(101));
  EXPECT_TRUE(
      std::all_of(predicted.begin(), predicted.end(), [](const auto& entry) { return entry.second == 1; }));
}

TEST(WindowSampler, each_epoch_is_a_new_order_of_all_windows) {
  const ScratchDirectory scratch;
  const WindowSampler sampler(streams_of(scratch, {401, 201}), 4, 9);
  const uint64_t count = sampler.num_windows();
  ASSERT_EQ(count, 150U);
  std::set<std::vector<int64_t>> orders;
  for (uint64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<int64_t> order;
    for (uint64_t i = 0; i < count; ++i) order.push_back(sample_at(sampler, epoch * count + i).front());
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), count);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 4U);
}

TEST(WindowSampler, the_order_depends_on_the_seed_alone) {
  const ScratchDirectory scratch;
  const WindowSampler reference(streams_of(scratch, {1001}), 4, 3);
  constexpr uint64_t kSamples = 480;  // spans epochs of 250
  std::vector<std::vector<int64_t>> expected;
  for (uint64_t i = 0; i < kSamples; ++i) expected.push_back(sample_at(reference, i));
  // Ranks take micro-batches in turn. Each has its own sampler and starts at any sample.
  for (const uint64_t world_size : {1, 2, 4}) {
    for (const uint64_t micro_batch : {1, 2, 8}) {
      std::vector<std::vector<int64_t>> seen(kSamples);
      for (uint64_t rank = world_size; rank-- > 0;) {
        const WindowSampler sampler(streams_of(scratch, {1001}), 4, 3);
        for (uint64_t first = rank * micro_batch; first < kSamples; first += world_size * micro_batch) {
          for (uint64_t i = first; i < std::min(first + micro_batch, kSamples); ++i)
            seen[i] = sample_at(sampler, i);
        }
      }
      EXPECT_EQ(seen, expected) << world_size << " ranks, micro-batches of " << micro_batch;
    }
  }
  const WindowSampler other(streams_of(scratch, {1001}), 4, 4);
  EXPECT_NE(sample_at(other, 0), expected[0]);
}

TEST(WindowSampler, data_too_short_for_one_window_are_named) {
  const ScratchDirectory scratch;
  const auto message = error_of<DataError>([&] { WindowSampler(streams_of(scratch, {4, 3}), 4, 1); });
  EXPECT_NE(message.find("s0.npy"), message.npos) << message;
  EXPECT_NE(message.find("7 tokens"), message.npos) << message;
  EXPECT_THROW(WindowSampler({}, 4, 1), DataError);
}

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
