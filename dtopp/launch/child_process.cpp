#include "dtopp/launch/child_process.h"

#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"

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

constexpr int kUnknown = static_cast<int>(ExitStatus::kResource);
constexpr int kNotExecuted = 127;

// The argument list for exec; `texts` must outlive it.
std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (auto& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

bool ignores_hangup() {
  struct sigaction now {};
  return sigaction(SIGHUP, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

SignalPipe::SignalPipe() {
  if (::pipe2(ends_.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    throw ResourceError("cannot open a pipe: ", std::generic_category().message(errno));
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
  for (const int signal : kSignals)
    if (signal != SIGHUP || !ignores_hangup()) std::signal(signal, SIG_DFL);
}

fs::path own_program() {
  std::error_code error;
  const fs::path link = "/proc/self/exe";
  const auto program = fs::read_symlink(link, error);
  return fs::exists(program, error) ? program : link;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

pid_t start_child(const ChildProgram& child) {
  auto arguments = child.arguments;
  auto environment = child.environment;
  const auto argument_pointers = pointers_to(arguments);
  const auto environment_pointers = pointers_to(environment);
  const pid_t parent = ::getpid();
  // Blocks all signals: no handler may run in the child while it shares the parent's pipe (SignalPipe).
  sigset_t all, mask;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &mask);
  const pid_t process = ::fork();
  if (process == 0) {  // async-signal-safe calls only: another thread may have held any lock at the fork
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kUnknown);  // the parent died before prctl
    ::setsid();
    if (child.output >= 0 &&
        (::dup2(child.output, STDOUT_FILENO) < 0 || ::dup2(child.output, STDERR_FILENO) < 0))
      ::_exit(kNotExecuted);
    SignalPipe::forget();
    ::sigprocmask(SIG_SETMASK, &mask, nullptr);
    ::execve(child.program.c_str(), argument_pointers.data(), environment_pointers.data());
    ::_exit(kNotExecuted);
  }
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  errno = error;
  return process;
}

std::optional<ChildEnd> reap_child(pid_t process) {
  int status = 0;
  const pid_t answer = retry([&] { return ::waitpid(process, &status, WNOHANG); });
  if (answer == 0) return std::nullopt;
  if (answer < 0) return ChildEnd{.status = kUnknown};
  if (WIFSIGNALED(status)) return ChildEnd{.signal = WTERMSIG(status)};
  return ChildEnd{.status = WEXITSTATUS(status)};
}

void kill_child(pid_t process) {
  ::kill(process, SIGKILL);
  retry([&] { return ::waitpid(process, nullptr, 0); });
}

std::string signal_name(int signal) {
  return "signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
}

}  // namespace dtopp::launch
