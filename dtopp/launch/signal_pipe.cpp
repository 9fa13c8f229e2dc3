#include "dtopp/launch/signal_pipe.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "dtopp/base/descriptor.h"
#include "dtopp/base/errors.h"

namespace dtopp::launch {
namespace {

// A signal handler can access only a global.
volatile std::sig_atomic_t write_end = -1;

// A full pipe loses nothing: it already holds more signals of the same kinds.
void write_signal(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  (void)!::write(write_end, &byte, 1);
  errno = saved;
}

}  // namespace

bool ignores_hangup() {
  struct sigaction now {};
  return sigaction(SIGHUP, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

SignalPipe::SignalPipe() {
  if (::pipe2(ends_.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    throw ResourceError("cannot open a pipe: " + std::generic_category().message(errno));
  write_end = ends_[1];
  struct sigaction action {};
  action.sa_handler = write_signal;
  action.sa_flags = SA_RESTART | SA_NOCLDSTOP;
  sigset_t ours;
  sigemptyset(&ours);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    const bool is_ignored = kSignals[i] == SIGHUP && ignores_hangup();
    sigaction(kSignals[i], is_ignored ? nullptr : &action, &before_[i]);
    sigaddset(&ours, kSignals[i]);
  }
  pthread_sigmask(SIG_UNBLOCK, &ours, &mask_before_);
}

SignalPipe::~SignalPipe() {
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  write_end = -1;
  for (const int end : ends_) ::close(end);
}

std::vector<int> SignalPipe::wait(int milliseconds) const {
  pollfd readable{ends_[0], POLLIN, 0};
  retry([&] { return ::poll(&readable, 1, milliseconds); });
  std::array<unsigned char, 64> bytes{};
  const auto count = retry([&] { return ::read(ends_[0], bytes.data(), bytes.size()); });
  return {bytes.data(), bytes.data() + (count > 0 ? count : 0)};
}

bool SignalPipe::wait_for_stop(std::chrono::milliseconds pause) const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + pause;
  for (auto left = pause; left.count() > 0;
       left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now())) {
    if (std::ranges::any_of(wait(static_cast<int>(left.count())), is_stop)) return true;
  }
  return false;
}

void SignalPipe::forget() {
  for (const int signal : kSignals) {
    if (signal != SIGHUP || !ignores_hangup()) std::signal(signal, SIG_DFL);
  }
}

}  // namespace dtopp::launch
