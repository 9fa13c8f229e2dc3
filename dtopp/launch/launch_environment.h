// Finds the rank of this process and the rendezvous of its run in the environment variables of the launcher.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtopp::launch {

// The first host of SLURM_STEP_NODELIST: "gpu003" for "gpu[003-006,9],cpu1". nullopt if it is not such a
// list.
std::optional<std::string> first_host(std::string_view hosts);

// The number of tasks of the step on node `node`, counted from 0, by SLURM_STEP_TASKS_PER_NODE: 3 for node 2
// of "4(x2),3". nullopt if it is not such a list or has too few nodes.
std::optional<int64_t> tasks_on_node(std::string_view tasks, int64_t node);

enum class Launcher {
  kNone,         // no launcher: a single process
  kOwn,          // --processes (launch/local_ranks.h)
  kEnvironment,  // torchrun, or anything else that sets RANK and WORLD_SIZE
  kSlurm,
  kOpenMpi,
};

struct LaunchEnvironment {
  int64_t rank = 0;
  int64_t world_size = 1;
  // Rank and number of ranks on this machine. `local_world_size` is 0 if the launcher does not report
  // it; `local_rank` is then 0 unless it is reported.
  int64_t local_rank = 0;
  int64_t local_world_size = 1;
  // Address of the rendezvous store. It may be empty if there is only one rank.
  std::string master_addr;
  uint16_t master_port = 0;
  Launcher launcher = Launcher::kNone;
  // True if the launcher (torchrun's agent, dtopp itself) runs the store and every rank is a client.
  // Otherwise rank 0 runs it.
  bool launcher_holds_store = false;
  // Prefix of every key in the store. torchrun's agent keeps its store when it restarts the ranks, with the
  // keys that the dead ranks wrote, so each start uses keys of its own.
  std::string store_prefix;

  bool alone() const { return world_size == 1; }
};

// Reads the first of these groups of variables that is set:
//
// - RANK and WORLD_SIZE, with LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT;
// - Open MPI's OMPI_COMM_WORLD_*, with MASTER_ADDR and MASTER_PORT. They precede Slurm's, because
//   mpirun starts one daemon per node as tasks of a Slurm step, and the ranks inherit its SLURM_PROCID;
// - Slurm's, for a step that srun started. Unless MASTER_ADDR and MASTER_PORT are set, the store is on the
//   step's first node, which runs rank 0, on a port from 61440 up that is computed from job and step.
//
// A process in a Slurm job that srun did not start runs alone, however many tasks the job has. Examples are
// sbatch's script (SLURM_PROCID=0 and maybe SLURM_NTASKS=8, but no step, and ENVIRONMENT=BATCH), salloc's
// shell (no SLURM_PROCID, or a step of one task whatever the value of SLURM_NTASKS) and an ssh shell. If a
// step's own variables are not passed on, for example into a container, SLURM_NTASKS replaces them.
//
// `environment` holds entries "NAME=value" (own_environment). An empty value counts as not set.
//
// Throws:        UsageError with variable and value, if variables contradict each other, are not numbers, or
//                lack what the ranks need to find each other
LaunchEnvironment read_launch_environment(const std::vector<std::string>& environment);

}  // namespace dtopp::launch
