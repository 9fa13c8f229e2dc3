// Starts a command as several ranks (--processes), and finds this process's rank.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/console.h"
#include "dtopp/distributed/cluster.h"
#include "dtopp/distributed/failure.h"
#include "dtopp/launch/launch_environment.h"
#include "dtopp/models/batch.h"
#include "dtopp/plan/plan.h"
#include "dtopp/train/trainer.h"

namespace dtopp::cli {
// Reads this process's rank from its environment.
launch::LaunchEnvironment own_launch_environment();

// The ranks that a command starts.
struct RankGroup {
  int64_t processes = 1;
  int64_t restarts = 0;    // the most restarts after a lost rank
  fs::path checkpoints{};  // from which the ranks resume, if there are restarts
};

// Starts the ranks on this machine with the same command line without --processes and --restarts, and waits
// for them, again after each restart. A line on standard error names the rank that ended an attempt, unless
// that rank has printed its error and the ranks do not start again.
//
// Returns: the exit status of the last attempt
// Throws:  UsageError if this process is already one of several ranks
int run_processes(const launch::LaunchEnvironment& environment, const RankGroup& group);

CLI::Option* add_processes_option(CLI::App& command, int64_t& processes);

// Calls body(cluster) as one rank. Adds `advice` to a lack of memory.
template <class Body>
void run_rank(const launch::LaunchEnvironment& environment, const std::string& advice, const Body& body) {
  // Only our own launcher kills its ranks: one request may arrive as several forwarded signals.
  stop_on_signals(/*second_ends=*/environment.launcher != launch::Launcher::kOwn);
  distributed::Cluster cluster(environment, program_version);
  cluster.run([&] { distributed::with_memory_advice(advice, [&] { body(cluster); }); });
}

// Throws UsageError if DTOPP_MOE_KERNELS is invalid.
void check_requested_kernels();

// Sets up the ranks of commands that train: their groups, memory and trainer.
//
// Collective: every function but planned_memory

// Joins the other ranks, and applies the device, the kernels and the threads of the configuration. Throws
// RanksDiffer if another rank has another configuration.
const distributed::ProcessGroups& connect_ranks(distributed::Cluster& cluster,
                                                const config::RunConfig& config);

struct TrainingMemory {
  plan::Plan plan;
  uint64_t available = 0;  // bytes that this rank may use
};

// Plans the memory of training. Throws ResourceError if this rank has less.
TrainingMemory require_training_memory(const distributed::Cluster& cluster, const config::RunConfig& config,
                                       const distributed::ProcessGroups& groups);

// The planned memory of one process of a run, in bytes; nullopt if the plan needs more than the
// configuration.
std::optional<double> planned_memory(const config::RunConfig& config);

train::Trainer make_trainer(const config::RunConfig& config, models::TrainingData data,
                            const distributed::ProcessGroups& groups);

}  // namespace dtopp::cli
