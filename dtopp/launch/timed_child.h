// Runs a program as a child and returns its output. It is for programs that may crash or hang.
#pragma once

#include <chrono>
#include <string>

#include "dtopp/launch/child_process.h"

namespace dtopp::launch {

struct TimedChildEnd {
  std::string output;  // the last 64 KiB of standard output and error
  // "killed by signal 11 (…)", "ended with status 3", "did not end within 60 s"; empty: status 0
  std::string failure;
};

// Returns when the child has ended, or after `limit`, when it has killed the child and its process group. It
// ignores child.output.
//
// Throws:        ResourceError if the child cannot be started
TimedChildEnd run_timed_child(ChildProgram child, std::chrono::milliseconds limit);

}  // namespace dtopp::launch
