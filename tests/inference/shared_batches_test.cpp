#include "dtopp/inference/shared_batches.h"

#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/distributed/rank_threads.h"

namespace dtopp::inference {
namespace {

using testing::ElementsAre;

// Stops before the batch after `last_batch` of this rank.
class RecordingWatch final : public Watch {
 public:
  explicit RecordingWatch(size_t last_batch = 1000) : last_batch_(last_batch) {}
  void update(uint64_t units) override { done.push_back(units); }
  bool stop_requested() override { return polls_++ == last_batch_; }
  std::vector<uint64_t> done;

 private:
  size_t last_batch_, polls_ = 0;
};

// Batch b ends after 10 (b + 1) units.
std::vector<uint64_t> ends_of(size_t batches) {
  std::vector<uint64_t> ends;
  for (size_t b = 0; b < batches; ++b) ends.push_back(10 * (b + 1));
  return ends;
}

TEST(SharedBatches, each_is_computed_once_by_the_rank_whose_turn_it_is) {
  for (const int64_t size : {1, 2, 3}) {
    for (const size_t batches : {0, 1, 2, 7}) {
      std::mutex mutex;
      std::vector<int64_t> computed_by(batches, -1);
      std::vector<uint64_t> done;
      distributed::run_group(size, [&](distributed::Collectives& ranks) {
        RecordingWatch watch;
        SharedBatches shared(ends_of(batches), ranks, watch);
        while (const auto b = shared.next()) {
          const std::lock_guard lock(mutex);
          EXPECT_EQ(computed_by[*b], -1);
          computed_by[*b] = ranks.rank();
        }
        EXPECT_FALSE(shared.stopped());
        if (ranks.rank() == 0) done = watch.done;
      });
      for (size_t b = 0; b < batches; ++b) EXPECT_EQ(computed_by[b], static_cast<int64_t>(b) % size);
      EXPECT_EQ(done.size(), (batches + static_cast<size_t>(size) - 1) / static_cast<size_t>(size));
      EXPECT_TRUE(batches == 0 || done.back() == 10 * batches);
    }
  }
}

TEST(SharedBatches, a_stop_on_any_rank_is_one_on_all_after_the_batch_in_hand) {
  for (const int64_t stopped : {0, 1, 2}) {
    std::vector<std::vector<size_t>> computed(3);
    distributed::run_group(3, [&](distributed::Collectives& ranks) {
      std::vector<size_t>& mine = computed[static_cast<size_t>(ranks.rank())];
      RecordingWatch watch(ranks.rank() == stopped ? 2 : 1000);
      SharedBatches shared(ends_of(30), ranks, watch);
      while (const auto b = shared.next()) mine.push_back(*b);
      EXPECT_TRUE(shared.stopped());
    });
    for (int64_t rank = 0; rank < 3; ++rank)
      EXPECT_EQ(computed[static_cast<size_t>(rank)].size(), rank == stopped ? 2 : 3);
  }
}

TEST(SharedBatches, one_process_stops_before_the_next_batch) {
  distributed::SingleRank alone;
  std::vector<size_t> computed;
  RecordingWatch watch(2);
  SharedBatches shared(ends_of(5), alone, watch);
  while (const auto b = shared.next()) computed.push_back(*b);
  EXPECT_TRUE(shared.stopped());
  EXPECT_THAT(computed, ElementsAre(0, 1));
}

}  // namespace
}  // namespace dtopp::inference
