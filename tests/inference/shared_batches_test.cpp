#include "dtopp/inference/shared_batches.h"

#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/distributed/rank_threads.h"

namespace dtopp {
namespace {

using testing::ElementsAre;

const std::function<bool()> kNever = [] { return false; };

TEST(SharedBatches, each_is_computed_once_by_the_rank_whose_turn_it_is) {
  for (const int64_t size : {1, 2, 3}) {
    for (const size_t batches : {0, 1, 2, 7}) {
      std::mutex mutex;
      std::vector<int64_t> computed_by(batches, -1);
      std::vector<uint64_t> done;
      run_group(size, [&](Collectives& ranks) {
        const auto progress = [&](uint64_t count) {
          if (ranks.rank() == 0) done.push_back(count);
        };
        EXPECT_TRUE(compute_batches(batches, ranks, {progress, kNever}, [&](size_t b) {
          const std::lock_guard lock(mutex);
          EXPECT_EQ(computed_by[b], -1);
          computed_by[b] = ranks.rank();
        }));
      });
      for (size_t b = 0; b < batches; ++b) EXPECT_EQ(computed_by[b], static_cast<int64_t>(b) % size);
      EXPECT_EQ(done.size(), (batches + static_cast<size_t>(size) - 1) / static_cast<size_t>(size));
      EXPECT_TRUE(batches == 0 || done.back() == batches);
    }
  }
}

TEST(SharedBatches, a_stop_on_any_rank_is_one_on_all_after_the_batch_in_hand) {
  for (const int64_t stopped : {0, 1, 2}) {
    std::vector<std::vector<size_t>> computed(3);
    run_group(3, [&](Collectives& ranks) {
      std::vector<size_t>& mine = computed[static_cast<size_t>(ranks.rank())];
      const auto stop = [&] { return ranks.rank() == stopped && mine.size() == 2; };
      EXPECT_FALSE(
          compute_batches(30, ranks, {[](uint64_t /*done*/) {}, stop}, [&](size_t b) { mine.push_back(b); }));
    });
    for (int64_t rank = 0; rank < 3; ++rank)
      EXPECT_EQ(computed[static_cast<size_t>(rank)].size(), rank == stopped ? 2 : 3);
  }
}

TEST(SharedBatches, one_process_stops_before_the_next_batch) {
  SingleRank alone;
  std::vector<size_t> computed;
  EXPECT_FALSE(compute_batches(5, alone, {[](uint64_t /*done*/) {}, [&] { return computed.size() == 2; }},
                               [&](size_t b) { computed.push_back(b); }));
  EXPECT_THAT(computed, ElementsAre(0, 1));
}

}  // namespace
}  // namespace dtopp
