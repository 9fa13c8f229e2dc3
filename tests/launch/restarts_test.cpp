#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/launch/local_ranks.h"

namespace dtopp::launch::restarts_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

const RanksEnd kKilled{.status = 5, .rank = 1, .signal = 9};
const RanksEnd kSilent{.status = 5, .rank = 1};

TEST(Restarts, follow_each_lost_rank_until_all_are_used) {
  Restarts restarts(2, 0);
  const Restart first = restarts.after(kKilled, 10);
  EXPECT_TRUE(first.again);
  EXPECT_EQ(first.message, "restart 1 of 2 from step 10");
  const Restart second = restarts.after(kSilent, 20);
  EXPECT_TRUE(second.again);
  EXPECT_EQ(second.message, "restart 2 of 2 from step 20");
  const Restart third = restarts.after(kKilled, 30);
  EXPECT_FALSE(third.again);
  EXPECT_EQ(third.message, "not restarted: all 2 restarts are used");
}

TEST(Restarts, end_after_two_attempts_in_a_row_without_a_newer_checkpoint) {
  Restarts restarts(9, 0);
  EXPECT_TRUE(restarts.after(kKilled, 0).again);
  EXPECT_TRUE(restarts.after(kKilled, 10).again);
  EXPECT_TRUE(restarts.after(kKilled, 10).again);
  const Restart last = restarts.after(kKilled, 10);
  EXPECT_FALSE(last.again);
  EXPECT_EQ(last.message, "not restarted: two attempts in a row saved no newer checkpoint");
}

TEST(Restarts, follow_no_other_end) {
  std::vector<RanksEnd> ends = {{.status = 128 + 15, .rank = 0, .signal = 15, .stopped = true},
                                {.status = 5, .rank = 0, .signal = 9, .stopped = true}};
  for (const int status : {0, 1, 2, 3, 4, 6, 75, 127}) ends.push_back({.status = status, .rank = 0});
  for (const RanksEnd& end : ends) {
    const Restart restart = Restarts(3, 0).after(end, 10);
    EXPECT_FALSE(restart.again) << end.status;
    EXPECT_EQ(restart.message, "") << end.status;
  }
  EXPECT_EQ(Restarts(0, 0).after(kKilled, 10).message, "");
}

TEST(Restarts, wait_twice_as_long_each_time_up_to_a_minute) {
  Restarts restarts(100, 0);
  std::vector<std::chrono::milliseconds> pauses;
  for (int64_t step = 1; step <= 100; ++step) pauses.push_back(restarts.after(kKilled, step).pause);
  EXPECT_EQ(pauses.back(), 60s);
  pauses.resize(11);
  EXPECT_THAT(pauses, ElementsAre(125ms, 250ms, 500ms, 1s, 2s, 4s, 8s, 16s, 32s, 60s, 60s));
}

}  // namespace
}  // namespace dtopp::launch::restarts_test
