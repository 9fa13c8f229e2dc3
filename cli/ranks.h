// Starts a command as several ranks (--processes), and finds this process's rank.
#pragma once

#include <cstdint>

#include "dtopp/launch/launch_environment.h"

namespace dtopp::cli {

// Reads this process's rank from its environment.
launch::LaunchEnvironment own_launch_environment();

// Starts `processes` ranks on this machine with the same command line without --processes, and waits for
// them. A line on standard error names the rank that ended the run.
//
// Returns: the exit status
// Throws:  UsageError if this process is already one of several ranks
int run_processes(const launch::LaunchEnvironment& environment, int64_t processes);

// Calls stop_on_signals with the policy that fits the launcher of this rank.
void stop_rank_on_signals(const launch::LaunchEnvironment& environment);

}  // namespace dtopp::cli
