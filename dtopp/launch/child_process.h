// One program started as a child of this one.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace dtopp {

// The file of the running program, by its own name, which tools like ps show then; where the file was
// replaced meanwhile, as the kernel knows it.
std::filesystem::path own_program();

// This process's environment.
std::vector<std::string> own_environment();

struct ChildProgram {
  std::filesystem::path program{};
  std::vector<std::string> arguments{};    // the program's name first
  std::vector<std::string> environment{};  // "NAME=value"
  int output = -1;                         // becomes its standard output and error; -1: the caller's
};

// The child dies (SIGKILL) with the calling thread and has a session of its own, so that what a terminal or
// kill(1) sends to this process's group does not reach it; SIGCHLD, SIGTERM and SIGINT have their default
// action. One whose program cannot be executed ends with 127. -1, and errno, where no process can be started.
pid_t start_child(const ChildProgram& child);

// How a child ended.
struct ChildEnd {
  int status = 0;
  int signal = 0;  // what killed it; 0: it ended by itself
};

// nullopt while it runs. 5 where somebody else has waited for it: how it ended nobody knows then.
std::optional<ChildEnd> reap_child(pid_t process);

// Returns when it is gone.
void kill_child(pid_t process);

// "signal 9 (Killed)"
std::string signal_name(int signal);

}  // namespace dtopp
