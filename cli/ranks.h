// Runs a command as one of several ranks that --processes, torchrun, Slurm or Open MPI started.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "dtopp/distributed/groups/process_groups.h"
#include "dtopp/launch/launch_environment.h"

namespace dtopp::cli {

// Reads this process's rank from its environment.
LaunchEnvironment own_launch_environment();

// Starts `processes` ranks on this machine with the same command line without --processes, and waits for
// them. A line on standard error names the rank that ended the run.
//
// Returns: the exit status
// Throws:  UsageError if this process is already one of several ranks
int run_processes(const LaunchEnvironment& environment, int64_t processes);

// Calls stop_on_signals with the policy that fits the launcher of this rank.
void stop_rank_on_signals(const LaunchEnvironment& environment);

// The rank that run_as_rank passes to `body`.
struct Rank {
  ProcessGroups groups{};
  // The value for RunObserver::begin; may be empty.
  std::function<void(int64_t step, const char* activity)> begin{};
};

struct JoinOptions {
  std::chrono::seconds
      timeout;  // a rank that is silent for this long is lost (distributed/membership/watcher.h)
  // Returns the device of this rank from its local rank on this host. Empty: the CPU.
  std::function<at::Device(int64_t local_rank)> device{};
  // Returns the size of the EP group from this rank's device. Empty: 1.
  std::function<int64_t(const at::Device& device)> expert_parallel{};
};

// Joins the ranks of this run and calls `body`. A process without a launcher is its only rank.
//
// The default number of threads is this rank's share of the machine's cores. Only one process prints each
// message: rank 0 for a stopped or failed run, the launcher of --processes for a lost rank. If another rank
// is lost, this process exits immediately with status 5, without waiting for its threads.
//
// Throws:     ResourceError if the other ranks cannot be reached; RanksDiffer if ranks run different programs
//             or use incompatible devices
// Collective: every rank of the run
void run_as_rank(const LaunchEnvironment& environment, const JoinOptions& options,
                 const std::function<void(const Rank&)>& body);

}  // namespace dtopp::cli
