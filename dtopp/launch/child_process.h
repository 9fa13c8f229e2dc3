// Starts a program as a child process, and waits for it or kills it.
#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

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

// The path of the running program. Tools like ps show this name. If the file was replaced meanwhile, it is
// the kernel's link to the running program.
std::filesystem::path own_program();

std::vector<std::string> own_environment();

struct ChildProgram {
  std::filesystem::path program{};
  std::vector<std::string> arguments{};    // starts with the program's name
  std::vector<std::string> environment{};  // "NAME=value"
  int output = -1;                         // descriptor for its standard output and error; -1: the caller's
};

// Starts the child in a session of its own, so signals for this process's group from a terminal or kill(1) do
// not reach it. The child is killed (SIGKILL) when the calling thread ends. SIGCHLD, SIGTERM, SIGINT and
// SIGHUP have their default action in the child, but an ignored SIGHUP stays ignored. The child ends with
// status 127 if the program cannot be executed.
//
// Returns -1 and sets errno if no process can be started.
pid_t start_child(const ChildProgram& child);

// The exit status of a child, or the signal that killed it.
struct ChildEnd {
  int status = 0;
  int signal = 0;  // signal that killed it; 0: it exited
};

// nullopt while the child runs. The status is 5 (unknown) if the child has already been waited for elsewhere.
std::optional<ChildEnd> reap_child(pid_t process);

// Kills the child. Returns when it has ended.
void kill_child(pid_t process);

// For example "signal 9 (Killed)".
std::string signal_name(int signal);

}  // namespace dtopp::launch
