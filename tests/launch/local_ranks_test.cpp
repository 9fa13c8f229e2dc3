#include "dtopp/launch/local_ranks.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dtopp/launch/launch_environment.h"
#include "tests/base/scratch_directory.h"
#include "tests/launch/launcher_process.h"

namespace dtopp::launch::local_ranks_test {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsSupersetOf;

constexpr auto kNoLimit = 1h;

LocalRanks ranks_of(int64_t count, const std::string& script, std::chrono::milliseconds grace = kNoLimit) {
  return {.count = count,
          .arguments = {"sh", "-c", script},
          .store_port = 29511,
          .grace = grace,
          .program = "/bin/sh"};
}

const std::string kForEver = "while :; do sleep 0.01; done";

TEST(LocalRanks, end_with_0_when_all_do) {
  const RanksEnd end = run_local_ranks(ranks_of(3, "exit 0"));
  EXPECT_EQ(end.status, 0);
  EXPECT_EQ(end.rank, -1);
  EXPECT_EQ(end.message(), "");
}

TEST(LocalRanks, find_themselves_in_their_environment_whatever_the_launcher_has_in_its_own) {
  ::setenv("RANK", "7", 1);
  ::setenv("RANKING", "kept", 1);
  LauncherProcess launcher(
      ranks_of(3,
               "echo RANK=$RANK WORLD_SIZE=$WORLD_SIZE LOCAL_RANK=$LOCAL_RANK "
               "LOCAL_WORLD_SIZE=$LOCAL_WORLD_SIZE MASTER_ADDR=$MASTER_ADDR "
               "MASTER_PORT=$MASTER_PORT DTOPP_LAUNCHER=$DTOPP_LAUNCHER RANKING=$RANKING "
               "ENTRIES=$(env | grep -c ^RANK=)"));
  ::unsetenv("RANK");
  ::unsetenv("RANKING");
  auto lines = launcher.lines(3);
  std::ranges::sort(lines);
  for (int64_t rank = 0; rank < 3; ++rank) {
    std::istringstream words(lines[rank]);
    const std::vector<std::string> variables{std::istream_iterator<std::string>(words), {}};
    const LaunchEnvironment environment = read_launch_environment(variables);
    EXPECT_EQ(environment.rank, rank);
    EXPECT_EQ(environment.world_size, 3);
    EXPECT_EQ(environment.local_rank, rank);
    EXPECT_EQ(environment.local_world_size, 3);
    EXPECT_EQ(environment.master_addr, "127.0.0.1");
    EXPECT_EQ(environment.master_port, 29511);
    EXPECT_EQ(environment.launcher, Launcher::kOwn);
    EXPECT_THAT(variables, IsSupersetOf({"RANKING=kept", "ENTRIES=1"}));
  }
  EXPECT_EQ(launcher.status(), 0);
}

TEST(LocalRanks, are_children_of_the_launcher_in_sessions_of_their_own) {
  LauncherProcess launcher(ranks_of(2,
                                    "read -r pid _ _ parent group session _ </proc/$$/stat; "
                                    "echo $((pid - group)) $((pid - session)) $parent"));
  EXPECT_THAT(launcher.lines(2), Each("0 0 " + std::to_string(launcher.process())));
  EXPECT_EQ(launcher.status(), 0);
}

TEST(LocalRanks, of_which_one_fails_end_with_its_status_and_the_others_are_killed_after_the_grace) {
  const RanksEnd end = run_local_ranks(ranks_of(3, "[ $RANK = 1 ] && exit 3; exec sleep 1000", 50ms));
  EXPECT_EQ(end.status, 3);
  EXPECT_EQ(end.rank, 1);
  EXPECT_EQ(end.message(), "rank 1 ended with status 3");
}

// Rank 0 ends after the launcher has reaped rank 1. Until then rank 1 is a zombie, which kill still finds.
TEST(LocalRanks, that_lost_another_end_by_themselves_within_the_grace) {
  ScratchDirectory scratch;
  const std::string folder = "cd " + scratch.path().string() + "; ";
  const std::string failing = "[ $RANK = 1 ] && echo $$ >pid && mv pid failing && exit 3; ";
  const std::string noticing =
      "until [ -e failing ]; do sleep 0.01; done; read -r other <failing; "
      "while kill -0 $other 2>/dev/null; do sleep 0.01; done; echo noticed; exit 5";
  LauncherProcess launcher(ranks_of(2, folder + failing + noticing));
  EXPECT_THAT(launcher.lines(3), ElementsAre("noticed", "rank 1 ended with status 3", "end"));
  EXPECT_EQ(launcher.status(), 3);
}

TEST(LocalRanks, that_lost_another_do_not_decide_though_they_end_first) {
  const RanksEnd end = run_local_ranks(ranks_of(2, "[ $RANK = 0 ] && exit 5; sleep 0.2; exit 3"));
  EXPECT_EQ(end.status, 3);
  EXPECT_EQ(end.message(), "rank 1 ended with status 3");
}

TEST(LocalRanks, end_with_5_where_one_is_killed) {
  LauncherProcess launcher(ranks_of(2, "[ $RANK = 1 ] && echo $$; exec sleep 1000", 50ms));
  ::kill(std::stoi(launcher.line()), SIGKILL);
  EXPECT_EQ(launcher.line(), "rank 1 was killed by signal 9 (Killed)");
  EXPECT_EQ(launcher.status(), 5);
}

TEST(LocalRanks, of_which_several_died_before_the_launcher_looked_blame_the_one_that_was_killed) {
  LauncherProcess launcher(ranks_of(3, "trap 'exit 5' USR1; echo $RANK $$; " + kForEver));
  auto lines = launcher.lines(3);
  std::ranges::sort(lines);
  const auto process = [&](size_t rank) { return lines[rank].substr(2); };
  launcher.pause();
  ::kill(std::stoi(process(1)), SIGKILL);
  wait_for_state(process(1), 'Z');
  for (const size_t rank : {0, 2}) {
    ::kill(std::stoi(process(rank)), SIGUSR1);
    wait_for_state(process(rank), 'Z');
  }
  launcher.send(SIGCONT);
  EXPECT_EQ(launcher.line(), "rank 1 was killed by signal 9 (Killed)");
  EXPECT_EQ(launcher.status(), 5);
}

TEST(LocalRanks, all_get_a_stop_signal_sent_to_the_launcher_and_end_with_75) {
  for (const auto& [signal, number] :
       {std::pair("TERM", SIGTERM), std::pair("INT", SIGINT), std::pair("HUP", SIGHUP)}) {
    LauncherProcess launcher(
        ranks_of(3, "trap 'echo stopping; exit 75' " + std::string(signal) + "; echo ready; " + kForEver));
    EXPECT_THAT(launcher.lines(3), Each("ready"));
    launcher.send(number);
    EXPECT_THAT(launcher.lines(3), Each("stopping"));
    EXPECT_THAT(launcher.lines(2), ElementsAre("", "end"));
    EXPECT_EQ(launcher.status(), 75);
  }
}

TEST(LocalRanks, that_do_not_stop_with_the_others_are_killed_after_the_grace) {
  LauncherProcess launcher(
      ranks_of(2, "[ $RANK = 1 ] && trap '' TERM || trap 'exit 75' TERM; echo ready; " + kForEver, 50ms));
  EXPECT_THAT(launcher.lines(2), Each("ready"));
  launcher.send(SIGTERM);
  EXPECT_THAT(launcher.lines(2), ElementsAre("", "end"));
  EXPECT_EQ(launcher.status(), 75);
}

TEST(LocalRanks, that_fail_while_the_run_stops_decide_nevertheless) {
  LauncherProcess launcher(ranks_of(
      2, "[ $RANK = 1 ] && trap 'sleep 0.1; exit 6' TERM || trap 'exit 75' TERM; echo ready; " + kForEver));
  EXPECT_THAT(launcher.lines(2), Each("ready"));
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.line(), "rank 1 ended with status 6");
  EXPECT_EQ(launcher.status(), 6);
}

TEST(LocalRanks, are_killed_by_a_second_stop_signal) {
  LauncherProcess launcher(ranks_of(2, "trap 'echo stopping' TERM; echo ready; " + kForEver));
  EXPECT_THAT(launcher.lines(2), Each("ready"));
  launcher.send(SIGTERM);
  EXPECT_THAT(launcher.lines(2), Each("stopping"));
  std::this_thread::sleep_for(101ms);  // requests less than 100 ms apart count as one
  launcher.send(SIGINT);
  EXPECT_THAT(launcher.lines(2), ElementsAre("", "end"));
  EXPECT_EQ(launcher.status(), 128 + SIGINT);
}

TEST(LocalRanks, are_not_killed_where_one_request_to_stop_comes_as_two_signals) {
  LauncherProcess launcher(ranks_of(2, "trap 'echo stopping; exit 75' TERM INT; echo ready; " + kForEver));
  EXPECT_THAT(launcher.lines(2), Each("ready"));
  launcher.pause();
  launcher.send(SIGTERM);
  launcher.send(SIGINT);
  launcher.send(SIGCONT);
  EXPECT_THAT(launcher.lines(4), ElementsAre("stopping", "stopping", "", "end"));
  EXPECT_EQ(launcher.status(), 75);
}

TEST(LocalRanks, are_not_killed_by_the_repeated_hangups_of_a_closed_terminal) {
  LauncherProcess launcher(
      ranks_of(2, "trap 'echo stopping; sleep 0.3; exit 75' HUP; echo ready; " + kForEver));
  EXPECT_THAT(launcher.lines(2), Each("ready"));
  launcher.send(SIGHUP);
  EXPECT_THAT(launcher.lines(2), Each("stopping"));
  std::this_thread::sleep_for(101ms);
  launcher.send(SIGHUP);
  EXPECT_THAT(launcher.lines(2), ElementsAre("", "end"));
  EXPECT_EQ(launcher.status(), 75);
}

TEST(LocalRanks, that_a_stop_signal_kills_count_as_stopped_by_it) {
  LauncherProcess launcher(ranks_of(1, "echo ready; exec sleep 1000"));
  EXPECT_EQ(launcher.line(), "ready");
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.line(), "rank 0 was killed by signal 15 (Terminated)");
  EXPECT_EQ(launcher.status(), 128 + SIGTERM);
}

TEST(LocalRanks, are_gone_when_the_launcher_is_killed) {
  LauncherProcess launcher(ranks_of(3, "trap '' TERM INT HUP; echo ready; exec sleep 1000"));
  EXPECT_THAT(launcher.lines(3), Each("ready"));
  launcher.send(SIGKILL);
  EXPECT_EQ(launcher.line(), "end");
  EXPECT_EQ(launcher.status(), 128 + SIGKILL);
}

TEST(LocalRanks, run_the_launchers_own_program_where_none_is_named) {
  auto ranks = ranks_of(1, "");
  ranks.arguments = {"any name", "--gtest_list_tests"};
  ranks.program.clear();
  LauncherProcess launcher(ranks);
  std::vector<std::string> lines;
  while (lines.empty() || lines.back() != "end") lines.push_back(launcher.line());
  EXPECT_THAT(lines, Contains("LocalRanks."));
  EXPECT_EQ(launcher.status(), 0);
}

TEST(LocalRanks, whose_program_is_not_there_end_with_127) {
  auto ranks = ranks_of(2, "");
  ranks.program = "/nowhere/at/all";
  const RanksEnd end = run_local_ranks(ranks);
  EXPECT_EQ(end.status, 127);
  EXPECT_EQ(end.signal, 0);
}

std::vector<std::string> open_descriptors() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    names.push_back(entry.path().filename());
  return names;
}

TEST(LocalRanks, leave_the_process_as_it_was) {
  sigset_t blocked, mask_before, mask_after;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGCHLD);
  sigaddset(&blocked, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &blocked, &mask_before);
  const auto handler = std::signal(SIGINT, SIG_IGN);
  const auto descriptors = open_descriptors();
  EXPECT_EQ(run_local_ranks(ranks_of(4, "exit 0")).status, 0);
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_EQ(std::signal(SIGINT, handler), SIG_IGN);
  pthread_sigmask(SIG_SETMASK, &mask_before, &mask_after);
  EXPECT_TRUE(sigismember(&mask_after, SIGTERM));
  EXPECT_FALSE(sigismember(&mask_after, SIGINT));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

// A signal to the process goes to any thread that does not block it.
TEST(LocalRanks, get_a_stop_signal_that_another_thread_of_the_launcher_takes) {
  const auto start_thread = [] {
    std::thread([] {
      while (true) ::pause();
    }).detach();
  };
  LauncherProcess launcher(ranks_of(2, "trap 'exit 75' TERM; echo ready; " + kForEver), start_thread);
  EXPECT_THAT(launcher.lines(2), Each("ready"));
  const std::string own = std::to_string(launcher.process());
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + own + "/task")) {
    const std::string thread = entry.path().filename();
    if (thread != own) ::syscall(SYS_tgkill, launcher.process(), std::stoi(thread), SIGTERM);
  }
  EXPECT_EQ(launcher.line(), "");
  EXPECT_EQ(launcher.status(), 75);
}

}  // namespace
}  // namespace dtopp::launch::local_ranks_test
