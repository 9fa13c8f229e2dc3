// Interrupts a preparation at any moment, as a power failure does.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace dtopp {

// Calls run() in a child that a signal kills after `microseconds`. Returns true if it finished first. The
// test fails if run() throws.
template <class Run>
bool run_and_kill(unsigned microseconds, const Run& run) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      run();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(2);
    }
    ::_exit(0);
  }
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) != 0) << "the restart failed";
  return WIFEXITED(status);
}

}  // namespace dtopp
