#include "dtopp/launch/child_process.h"

#include <csignal>

#include <gtest/gtest.h>

namespace dtopp::launch::signal_pipe_test {
namespace {

using namespace std::chrono_literals;

TEST(SignalPipe, waits_the_whole_pause_unless_a_stop_signal_arrives) {
  const SignalPipe signals;
  const auto begin = std::chrono::steady_clock::now();
  std::raise(SIGCHLD);
  EXPECT_FALSE(signals.wait_for_stop(20ms));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 20ms);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    std::raise(signal);
    EXPECT_TRUE(signals.wait_for_stop(1h));
  }
}

TEST(SignalPipe, keeps_ignoring_a_hangup_as_nohup_asked) {
  std::signal(SIGHUP, SIG_IGN);
  {
    const SignalPipe signals;
    std::raise(SIGHUP);
    EXPECT_FALSE(signals.wait_for_stop(20ms));
    SignalPipe::forget();  // as a child does before it executes its program
    EXPECT_TRUE(ignores_hangup());
  }
  EXPECT_TRUE(ignores_hangup());
  std::signal(SIGHUP, SIG_DFL);
  EXPECT_FALSE(ignores_hangup());
}

}  // namespace

}  // namespace dtopp::launch::signal_pipe_test
