// How a verb becomes one of several ranks: started by --processes, torchrun, Slurm or Open MPI.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "dtopp/distributed/groups/world.h"
#include "dtopp/launch/place.h"

namespace dtopp::cli {

// As this process's environment says.
Place own_place();

// Starts the same command line, without --processes, as that many ranks on this machine and waits for them.
// Returns the exit status; a line on standard error names the rank that ended the run. UsageError where this
// process is one of several already.
int run_processes(const Place& place, int64_t processes);

// stop_on_signals: who ends a rank that does not stop in time depends on its launcher.
void stop_rank_on_signals(const Place& place);

// One of the ranks of a run, as `body` sees it.
struct Rank {
  World world{};
  // For RunObserver::begin; may be empty.
  std::function<void(int64_t step, const char* activity)> begin{};
};

struct JoinOptions {
  std::chrono::seconds timeout;  // that a rank may be silent (distributed/membership/watcher.h)
  // Where this rank computes, by its number among those on this host; none: on the CPU.
  std::function<at::Device(int64_t local_rank)> device{};
  // The ranks of a block that shares out the experts, given what this one computes on; none: 1.
  std::function<int64_t(const at::Device& device)> expert_parallel{};
};

// Joins the ranks this process works with (itself where it is alone), and calls `body` with them, its share
// of the cores being the default number of threads. A rank says nothing that another one says for all: of a
// stopped or failed run rank 0 does, of a lost rank the launcher of --processes. Where another rank is lost
// the process ends at once, from whatever it does, with status 5. ResourceError where the others cannot be
// reached, RanksDiffer where they run another program or compute on devices that do not go together.
void run_as_rank(const Place& place, const JoinOptions& options,
                 const std::function<void(const Rank&)>& body);

}  // namespace dtopp::cli
