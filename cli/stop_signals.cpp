#include "cli/stop_signals.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <ctime>

#include <unistd.h>

#include "dtopp/launch/signal_pipe.h"

namespace dtopp::cli {
namespace {

// A signal handler can use only globals, and it may run in any thread.
// Time of the first SIGTERM or SIGINT, in nanoseconds of the steady clock; 0: none.
std::atomic<int64_t> requested_at = 0;
std::atomic<bool> requested = false;
std::atomic<bool> second_ends = true;
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void on_signal(int signal) {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
  int64_t first = 0;
  requested = true;
  if (!launch::may_insist(signal)) return;
  if (requested_at.compare_exchange_strong(first, now)) return;
  if (second_ends && std::chrono::nanoseconds(now - first) >= launch::kOneRequest) _exit(128 + signal);
}

}  // namespace

void stop_on_signals(Impatience impatience) {
  second_ends = impatience == Impatience::kSecondSignal;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  if (!launch::ignores_hangup()) sigaction(SIGHUP, &action, nullptr);
}

bool stop_requested() { return requested; }

StopToken stop_token() { return StopToken(requested); }

}  // namespace dtopp::cli
