#include "dtopp/launch/child_process.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dtopp/base/descriptor.h"
#include "dtopp/base/errors.h"
#include "dtopp/launch/signal_pipe.h"

namespace dtopp::launch {
namespace {

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

std::filesystem::path own_program() {
  std::error_code error;
  const std::filesystem::path link = "/proc/self/exe";
  const auto program = std::filesystem::read_symlink(link, error);
  return std::filesystem::exists(program, error) ? program : link;
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
  // Blocks all signals: no handler may run in the child while it shares the parent's pipe (signal_pipe.h).
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
