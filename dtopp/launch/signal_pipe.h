// Delivers signals through a pipe, so that a thread can wait for them.
#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <vector>

namespace dtopp::launch {

// Signals closer together count as one request: timeout(1) signals its child and then the whole group.
inline constexpr std::chrono::milliseconds kOneRequest{100};

// SIGTERM, SIGINT and SIGHUP.
inline bool is_stop(int signal) { return signal != SIGCHLD; }

// Whether the signal can be the second one, which ends a process that is still saving. SIGHUP cannot: a
// closed terminal may send it several times.
inline bool may_insist(int signal) { return signal == SIGTERM || signal == SIGINT; }

// Whether the process ignores SIGHUP, as nohup(1) has asked. It must keep ignoring it.
bool ignores_hangup();

// While it exists, wait() returns the SIGCHLD, SIGTERM, SIGINT and SIGHUP of this process, whichever thread
// receives them. An ignored SIGHUP stays ignored. (A signalfd would miss signals for a thread that does not
// block them.) Only one may exist at a time.
class SignalPipe {
 public:
  SignalPipe();   // throws ResourceError if no descriptor is left
  ~SignalPipe();  // restores the caller's handlers and signal mask
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  // The signals received, in order. Waits up to `milliseconds` for one; without limit if it is negative.
  std::vector<int> wait(int milliseconds) const;

  // Waits for `pause`. Returns true at once if a stop signal arrives.
  bool wait_for_stop(std::chrono::milliseconds pause) const;

  // Call in a child between fork and exec: the handlers would write to the parent's pipe. Async-signal-safe.
  static void forget();

 private:
  static constexpr std::array kSignals{SIGCHLD, SIGTERM, SIGINT, SIGHUP};

  std::array<int, 2> ends_{-1, -1};
  std::array<struct sigaction, kSignals.size()> before_{};
  sigset_t mask_before_{};
};

}  // namespace dtopp::launch
