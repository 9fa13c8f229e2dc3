// Signals as something to wait for.
#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <vector>

namespace dtopp {

// Signals closer together are one request: timeout(1) signals its child and then the whole group.
inline constexpr std::chrono::milliseconds kOneRequest{100};

// While it lives, SIGCHLD, SIGTERM and SIGINT of this process come out of wait(), whatever thread takes them
// (a signalfd would miss those that reach a thread that does not block them). Only one at a time.
class SignalPipe {
 public:
  SignalPipe();   // ResourceError where there is no descriptor left
  ~SignalPipe();  // gives the caller's handlers and mask back
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  // The signals that came, in order; waits for one up to `milliseconds`, for ever where that is negative.
  std::vector<int> wait(int milliseconds) const;

  // In a child between fork and exec: the handlers would write to the parent's pipe. Async-signal-safe.
  static void forget();

 private:
  static constexpr std::array kSignals{SIGCHLD, SIGTERM, SIGINT};

  std::array<int, 2> ends_{-1, -1};
  std::array<struct sigaction, kSignals.size()> before_{};
  sigset_t mask_before_{};
};

}  // namespace dtopp
