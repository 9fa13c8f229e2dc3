#include "benchmarks/delayed_collectives.h"

#include <gtest/gtest.h>

#include "tests/distributed/silent_collectives.h"

namespace dtopp::distributed {
namespace {

using Clock = Wire::Clock;
using std::chrono::milliseconds;

// A tensor for one of two ranks: half of the bytes of an all-to-all leave the rank.
at::Tensor half_leaves(int64_t bytes) { return at::zeros({2 * bytes}, at::kByte); }

TEST(Wire, carries_bytes_one_after_another) {
  Wire wire(milliseconds(7), 1e6);
  const Clock::time_point before = Clock::now();
  const Clock::time_point first = wire.arrival(50000), second = wire.arrival(30000), empty = wire.arrival(0);
  EXPECT_GE(first - before, milliseconds(57));
  EXPECT_LE(first - Clock::now(), milliseconds(57));
  EXPECT_EQ(second - first, milliseconds(30));  // the latency of one overlaps with sending the next
  EXPECT_EQ(empty, second);
}

TEST(Wire, does_not_save_time_in_which_it_was_idle) {
  Wire wire(milliseconds(0), 1e6);
  std::this_thread::sleep_for(milliseconds(20));
  const Clock::time_point before = Clock::now();
  EXPECT_GE(wire.arrival(10000) - before, milliseconds(10));
}

TEST(Wire, changes_for_what_it_is_given_from_then_on) {
  Wire wire(milliseconds(0), 1e6);
  const Clock::time_point first = wire.arrival(50000);
  wire.set(milliseconds(9), 2e6);
  EXPECT_EQ(wire.arrival(50000) - first, milliseconds(34));
}

TEST(DelayedCollectives, are_done_no_earlier_than_their_bytes_have_arrived) {
  const auto wire = std::make_shared<Wire>(milliseconds(20), 1e6);
  DelayedCollectives group(std::make_unique<SilentCollectives>(0, 2), wire);
  const at::Tensor first = half_leaves(100000), second = half_leaves(200000);
  const Clock::time_point before = Clock::now();
  Pending first_pending = group.all_to_all(first, first, {}, "reduce_scatter");
  Pending second_pending = group.all_to_all(second, second, {}, "reduce_scatter");
  EXPECT_FALSE(first_pending.done());  // it would be done if starting blocked
  EXPECT_FALSE(second_pending.done());
  first_pending.wait();
  EXPECT_GE(Clock::now() - before, milliseconds(120));
  EXPECT_FALSE(second_pending.done());
  second_pending.wait();
  EXPECT_GE(Clock::now() - before, milliseconds(320));
}

TEST(DelayedCollectives, hide_behind_what_the_caller_does_meanwhile) {
  const auto wire = std::make_shared<Wire>(milliseconds(5), 1e6);
  DelayedCollectives group(std::make_unique<SilentCollectives>(0, 2), wire);
  const at::Tensor flat = half_leaves(20000);
  Pending pending = group.all_to_all(flat, flat, {}, "reduce_scatter");
  std::this_thread::sleep_for(milliseconds(25));
  EXPECT_TRUE(pending.done());
  pending.wait();
}

TEST(DelayedCollectives, of_several_groups_share_a_wire) {
  const auto wire = std::make_shared<Wire>(milliseconds(0), 1e6);
  DelayedCollectives all(std::make_unique<SilentCollectives>(0, 2), wire);
  DelayedCollectives experts(std::make_unique<SilentCollectives>(0, 2), wire);
  const at::Tensor flat = half_leaves(50000);
  const Clock::time_point before = Clock::now();
  Pending first = all.all_to_all(flat, flat, {}, "reduce_scatter");
  experts.all_to_all(flat, flat, {}, "dispatch").wait();
  EXPECT_GE(Clock::now() - before, milliseconds(100));
  EXPECT_TRUE(first.done());
}

}  // namespace

}  // namespace dtopp::distributed
