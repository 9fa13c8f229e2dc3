#include "dtopp/distributed/rank_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtopp::distributed {
namespace {

using ::testing::HasSubstr;

constexpr SilenceLimits kLimits{.silent = 10, .absent = 50};

RankState in_step(int64_t step, int64_t ordinal, bool waiting, double cpu_seconds = 0) {
  return {.step = step,
          .activity = "step",
          .collective = "gather",
          .ordinal = ordinal,
          .waiting = waiting,
          .cpu_seconds = cpu_seconds};
}

// All ranks report every second. The test counts the seconds.
class Records : public ::testing::Test {
 protected:
  // Seconds until a rank counts as lost, or -1 if none does within a day. states(second)[rank] is a rank's
  // report.
  template <class States>
  double seconds_until_lost(States states) {
    for (int second = 1; second <= 86400; ++second) {
      const std::vector<RankState> now = states(second);
      for (size_t rank = 0; rank < now.size(); ++rank)
        records_.received(static_cast<int64_t>(rank), now[rank]);
      if ((lost_ = records_.pass(1))) return second;
    }
    return -1;
  }

  RankRecords records_{{"node0", "node1", "node2"}, kLimits};
  std::optional<LostRank> lost_;
};

TEST_F(Records, name_the_rank_that_all_others_wait_for_when_nothing_moves) {
  const auto seconds = seconds_until_lost([](int) {
    return std::vector{in_step(7, 20, true), in_step(7, 19, false), in_step(7, 20, true)};
  });
  EXPECT_EQ(seconds, 11);
  EXPECT_EQ(lost_->rank, 1);
  EXPECT_EQ(lost_->line(),
            "rank 1 on node1 at step 7, after gather: stuck for 10 s, while others wait in gather");
}

TEST_F(Records, name_the_rank_in_the_earliest_collective_where_all_wait) {
  seconds_until_lost([](int) {
    return std::vector{in_step(7, 20, true), in_step(7, 20, true), in_step(7, 19, true)};
  });
  EXPECT_EQ(lost_->rank, 2);
}

TEST_F(Records, name_no_rank_where_all_wait_in_the_same_collective) {
  seconds_until_lost([](int) {
    return std::vector{in_step(7, 20, true), in_step(7, 20, true), in_step(7, 20, true)};
  });
  EXPECT_EQ(lost_->line(),
            "all ranks at step 7, waiting in gather: no progress for 10 s; check the network between them");
}

TEST_F(Records, wait_for_a_rank_that_computes_for_a_day) {
  EXPECT_EQ(seconds_until_lost([](int second) {
              return std::vector{in_step(7, 20, true), in_step(7, 19, false, second), in_step(7, 20, true)};
            }),
            -1);
}

TEST_F(Records, wait_for_bytes_that_keep_coming) {
  EXPECT_EQ(
      seconds_until_lost([](int second) {
        return std::vector{in_step(7, 20, true, 0.02 * second), in_step(7, 20, true), in_step(7, 20, true)};
      }),
      -1);
}

TEST_F(Records, do_not_take_the_little_that_a_waiting_process_does_for_work) {
  EXPECT_EQ(seconds_until_lost([](int second) {
              const double idle = 0.002 * second;
              return std::vector{in_step(7, 20, true, idle), in_step(7, 19, false, idle),
                                 in_step(7, 20, true, idle)};
            }),
            11);
}

TEST_F(Records, wait_for_a_rank_whose_files_or_terminal_take_their_time) {
  for (const char* activity : {"start", "save", "report"}) {
    records_ = RankRecords({"node0", "node1", "node2"}, kLimits);
    RankState busy = in_step(7, 19, false);
    busy.activity = activity;
    EXPECT_EQ(seconds_until_lost([&](int) {
                return std::vector{busy, in_step(7, 20, true), in_step(7, 20, true)};
              }),
              -1)
        << activity;
  }
}

TEST_F(Records, are_content_with_slow_steps) {
  EXPECT_EQ(seconds_until_lost([](int second) {
              const int64_t step = second / 9;
              return std::vector{in_step(step, 20, true), in_step(step, 19, false), in_step(step, 20, true)};
            }),
            -1);
}

TEST_F(Records, name_a_silent_rank_though_it_was_computing) {
  for (int second = 1; second <= 10; ++second) {
    records_.received(0, in_step(7, 20, true));
    records_.received(2, in_step(7, 20, true));
    if (second == 1) records_.received(1, in_step(7, 19, false));
    EXPECT_FALSE(records_.pass(1)) << second;
  }
  records_.received(0, in_step(7, 20, true));
  records_.received(2, in_step(7, 20, true));
  lost_ = records_.pass(1);
  ASSERT_TRUE(lost_);
  EXPECT_EQ(
      lost_->line(),
      "rank 1 on node1 at step 7, after gather: silent for 10 s (stopped, or cut off), while others wait "
      "in gather");
}

// Its last message is the one at the begin of the save, before the save's first collective.
TEST(RankRecords, name_the_collective_that_others_wait_in_if_a_rank_is_stopped_while_saving) {
  const auto saving = [](const char* collective, int64_t ordinal, bool waiting) {
    return RankState{
        .step = 7, .activity = "save", .collective = collective, .ordinal = ordinal, .waiting = waiting};
  };
  for (const std::string own : {"", "node0"}) {  // the watching rank is watched itself only on rank 0
    RankRecords records({own, "node1"}, kLimits);
    records.received(1, saving("gather", 20, false));
    records.received(0, saving("save", 21, true));
    for (int second = 1; second <= 10; ++second) EXPECT_FALSE(records.pass(1)) << second;
    records.received(0, saving("collect", 22, true));
    const auto lost = records.pass(1);
    ASSERT_TRUE(lost);
    EXPECT_EQ(lost->line(),
              "rank 1 on node1 saving at step 7, after gather: silent for 10 s (stopped, or cut off), while "
              "others wait in collect");
  }
}

TEST_F(Records, name_a_rank_that_does_not_come) {
  const auto say = [&] {
    records_.received(0, in_step(0, 0, false));
    records_.received(1, in_step(0, 0, false));
    return records_.pass(10);
  };
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(say());
  lost_ = say();
  ASSERT_TRUE(lost_);
  EXPECT_THAT(lost_->line(), HasSubstr("rank 2 on node2 before its first step: did not join within 50 s"));
}

TEST_F(Records, expect_nothing_of_ranks_that_left) {
  for (const int64_t rank : {0, 1, 2}) {
    records_.received(rank, in_step(7, 20, true));
    records_.left(rank);
  }
  EXPECT_FALSE(records_.pass(1000));
}

TEST_F(Records, do_not_watch_ranks_without_a_host) {
  RankRecords only_the_first({"node0", "", ""}, kLimits);
  for (int second = 0; second < 100; ++second) {
    only_the_first.received(0, in_step(7, 20, true));
    EXPECT_FALSE(only_the_first.pass(1));
  }
}

TEST(RankState, is_read_back_from_its_line) {
  const RankState state{.step = 12,
                        .activity = "save",
                        .collective = "collect",
                        .ordinal = 345,
                        .waiting = true,
                        .cpu_seconds = 1234567.015625};
  const auto read = RankState::from_line(state.to_line());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->location(), "saving at step 12, waiting in collect");
  EXPECT_EQ(read->ordinal, 345);
  EXPECT_EQ(read->cpu_seconds, 1234567.015625);
  EXPECT_FALSE(RankState::from_line("12 save collect"));
  EXPECT_FALSE(RankState::from_line(""));
}

TEST(RankState, says_where_a_rank_is_before_it_trains) {
  EXPECT_EQ(RankState().location(), "before its first step");
}

TEST(LostRank, is_read_back_from_its_text) {
  const LostRank lost{
      .rank = 3, .status = 3, .location = "on a b", .cause = "ended with status 3: it: was so"};
  const auto read = LostRank::from_text(lost.to_text());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->line(), "rank 3 on a b: ended with status 3: it: was so");
  EXPECT_EQ(read->status, 3);
  EXPECT_FALSE(LostRank::from_text(""));
}

}  // namespace

}  // namespace dtopp::distributed
