#include "dtopp/data/text/sampler.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

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

}  // namespace

}  // namespace dtopp::data
