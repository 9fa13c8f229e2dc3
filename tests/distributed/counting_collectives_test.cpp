#include <gtest/gtest.h>

#include "dtopp/distributed/collectives.h"
#include "tests/distributed/rank_threads.h"
#include "tests/distributed/silent_collectives.h"

namespace dtopp::distributed {
namespace {

struct Counted {
  std::shared_ptr<CollectiveCounts> counts = std::make_shared<CollectiveCounts>();
  CountingCollectives group;

  Counted(int64_t rank, int64_t size) : group(std::make_unique<SilentCollectives>(rank, size), counts) {}
  int64_t bytes(const char* what) const { return counts->traffic().at(what).bytes; }
};

TEST(CollectiveCounts, are_the_bytes_that_one_rank_of_128_sends_to_others) {
  Counted rank(5, 128);
  const at::Tensor flat = at::empty({128 * 10, 3}), part = at::empty({10, 3});
  rank.group.all_to_all(flat, flat, {}, "reduce_scatter").wait();
  EXPECT_EQ(rank.bytes("reduce_scatter"), 127 * 10 * 3 * 4);
  rank.group.all_gather(flat.to(at::kBFloat16), part.to(at::kBFloat16), "gather").wait();
  EXPECT_EQ(rank.bytes("gather"), 127 * 10 * 3 * 2);

  Splits splits{std::vector<int64_t>(128, 1), std::vector<int64_t>(128, 0)};
  splits.in[5] = 7;  // rows that stay on this rank
  splits.in[6] = 2;
  rank.group.all_to_all(at::empty({128, 8}), at::empty({9, 8}), splits, "dispatch").wait();
  EXPECT_EQ(rank.bytes("dispatch"), 2 * 8 * 4);
  splits.in[127] = 1;
  rank.group.all_to_all(at::empty({128, 8}), at::empty({10, 8}), splits, "dispatch").wait();
  EXPECT_EQ(rank.bytes("dispatch"), 2 * 8 * 4 + 3 * 8 * 4);
  EXPECT_EQ(rank.counts->traffic().at("dispatch").calls, 2);

  rank.group.all_reduce_sum(at::empty({64}, at::kDouble), "decision").wait();
  EXPECT_EQ(rank.bytes("decision"), 2 * 64 * 8 * 127 / 128);
  rank.group.broadcast(at::empty({100}), 5, "start").wait();
  EXPECT_EQ(rank.bytes("start"), 127 * 400);
  rank.group.broadcast(at::empty({100}), 6, "start").wait();
  EXPECT_EQ(rank.bytes("start"), 127 * 400);
  rank.group.barrier("barrier").wait();
  EXPECT_EQ(rank.bytes("barrier"), 0);
}

TEST(CollectiveCounts, are_none_of_a_rank_by_itself) {
  const auto counts = std::make_shared<CollectiveCounts>();
  CountingCollectives group(std::make_unique<SingleRank>(), counts);
  const at::Tensor in = at::ones({4}), out = at::zeros({4});
  group.all_to_all(out, in, {}, "dispatch").wait();
  group.all_gather(out, in, "gather").wait();
  group.broadcast(out, 0, "start").wait();
  for (const auto& [what, traffic] : counts->traffic()) EXPECT_EQ(traffic.bytes, 0) << what;
  EXPECT_EQ(counts->traffic().size(), 3U);
}

TEST(CollectiveCounts, tell_another_thread_which_collective_a_rank_waits_for) {
  std::atomic<bool> seen = false;
  run_ranks(2, [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    const auto counts = std::make_shared<CollectiveCounts>();
    CountingCollectives group(make_gloo_collectives(store, "all", rank, all_ranks(2), on_loopback()), counts);
    EXPECT_EQ(counts->current().ordinal, 0);
    group.barrier("first").wait();
    EXPECT_STREQ(counts->current().what, "first");
    EXPECT_FALSE(counts->current().waiting);
    if (rank == 1) {  // rank 1 arrives late
      while (!seen) std::this_thread::yield();
      group.barrier("second").wait();
      group.barrier("third").wait();
      return;
    }
    std::thread watcher([&] {
      while (!counts->current().waiting) std::this_thread::yield();
      EXPECT_STREQ(counts->current().what, "second");
      EXPECT_EQ(counts->current().ordinal, 2);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      seen = true;
    });
    Pending second = group.barrier("second"), third = group.barrier("third");
    EXPECT_EQ(counts->current().ordinal, 3);
    second.wait();
    watcher.join();
    third.wait();
    EXPECT_EQ(counts->current().ordinal, 3);
    EXPECT_FALSE(counts->current().waiting);
    EXPECT_GE(counts->traffic().at("second").seconds, 0.02);
  });
}

}  // namespace

}  // namespace dtopp::distributed
