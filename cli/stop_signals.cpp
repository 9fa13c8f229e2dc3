#include "cli/stop_signals.h"

#include <csignal>

#include <unistd.h>

namespace dtopp::cli {
namespace {

// A signal handler can reach nothing but a global.
volatile std::sig_atomic_t stop_signal = 0;

void on_signal(int signal) {
  if (stop_signal != 0) _exit(128 + signal);
  stop_signal = signal;
}

}  // namespace

void stop_on_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

bool stop_requested() { return stop_signal != 0; }

}  // namespace dtopp::cli
