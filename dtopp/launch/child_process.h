// Starts a program as a child process, and waits for it or kills it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace dtopp::launch {

// The path of the running program. Tools like ps show this name. If the file was replaced meanwhile, it is
// the kernel's link to the running program.
std::filesystem::path own_program();

// The environment of this process.
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
