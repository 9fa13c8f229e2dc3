#include "dtopp/launch/timed_child.h"

#include <csignal>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "tests/base/scratch_directory.h"

namespace dtopp::launch::timed_child_test {
namespace {

using namespace std::chrono_literals;
using ::testing::EndsWith;
using ::testing::StartsWith;

constexpr auto kLongEnough = 60s;

TimedChildEnd run(const std::string& script, std::chrono::milliseconds limit = kLongEnough) {
  return run_timed_child({.program = "/bin/sh", .arguments = {"sh", "-c", script}}, limit);
}

TEST(TimedChild, gives_what_it_prints_on_both_streams) {
  const TimedChildEnd end = run("echo one; echo two >&2; printf three");
  EXPECT_EQ(end.output, "one\ntwo\nthree");
  EXPECT_EQ(end.failure, "");
}

TEST(TimedChild, gives_the_end_of_what_is_long) {
  const TimedChildEnd end = run("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done");
  EXPECT_EQ(end.output.size(), size_t{64} << 10);
  EXPECT_THAT(end.output, EndsWith("line 19998\nline 19999\n"));
}

TEST(TimedChild, says_how_it_failed) {
  const TimedChildEnd ended = run("echo before; exit 5");
  EXPECT_EQ(ended.output, "before\n");
  EXPECT_EQ(ended.failure, "ended with status 5");
  EXPECT_THAT(run("kill -SEGV $$").failure, StartsWith("killed by signal 11 (Segmentation fault"));
  EXPECT_EQ(run_timed_child({.program = "/no/such/program", .arguments = {"x"}}, kLongEnough).failure,
            "ended with status 127");
}

bool is_gone(pid_t process) { return ::kill(process, 0) != 0; }

TEST(TimedChild, is_killed_with_all_it_started_when_its_time_is_over) {
  const auto begin = std::chrono::steady_clock::now();
  const TimedChildEnd end =
      run("trap '' TERM INT; sleep 1000 & echo $!; while :; do sleep 1000; done", 300ms);
  EXPECT_EQ(end.failure, "did not end within 0.3 s");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  const pid_t started = std::stoi(end.output);
  for (int wait = 0; wait < 500 && !is_gone(started); ++wait) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(is_gone(started));
}

TEST(TimedChild, that_prints_for_ever_is_killed_too) {
  const TimedChildEnd end = run("while :; do echo rubbish; done", 200ms);
  EXPECT_EQ(end.failure, "did not end within 0.2 s");
  EXPECT_LE(end.output.size(), size_t{64} << 10);
}

// A process that the child leaves running may hold its streams open.
TEST(TimedChild, is_not_waited_for_beyond_its_end) {
  const auto begin = std::chrono::steady_clock::now();
  const TimedChildEnd end = run("sleep 3 & echo done");
  EXPECT_EQ(end.output, "done\n");
  EXPECT_EQ(end.failure, "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2s);
}

}  // namespace
}  // namespace dtopp::launch::timed_child_test
