// A program run as a child for what it prints, because it may crash, and with a time limit, because it may
// hang.
#pragma once

#include <chrono>
#include <string>

#include "dtopp/launch/child_process.h"

namespace dtopp {

struct TimedChildEnd {
  std::string output;  // of both standard streams, the last 64 KiB
  std::string failure;  // "killed by signal 11 (…)", "ended with status 3", "no end in 60 s"; empty: status 0
};

// Returns when the child has ended, or `limit` is over and it has been killed with all that it started.
// ResourceError where it cannot be started. child.output is not looked at.
TimedChildEnd run_timed_child(ChildProgram child, std::chrono::milliseconds limit);

}  // namespace dtopp
