// Where this process stands among the ranks of a run, as whoever started it says in the environment.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace dtopp {

enum class Launcher {
  kNone,         // started by itself
  kOwn,          // --processes (launch/local_ranks.h)
  kEnvironment,  // torchrun, or whatever sets RANK and WORLD_SIZE
  kSlurm,
  kOpenMpi,
};

struct Place {
  int64_t rank = 0;
  int64_t size = 1;
  // Among the ranks on this machine. A local_size of 0: nobody says how many there are; local_rank is 0 then
  // where nobody says that either.
  int64_t local_rank = 0;
  int64_t local_size = 1;
  // Where the rendezvous store listens; with one rank nothing where it is not given.
  std::string master_host;
  uint16_t master_port = 0;
  Launcher launcher = Launcher::kNone;
  // The launcher (torchrun's agent, dtopp itself) holds the store and every rank is a client; else rank 0
  // holds it.
  bool launcher_holds_store = false;
  // Goes before every key in the store. torchrun's agent keeps its store when it restarts the ranks, and with
  // it what the dead ones wrote: each start gets keys of its own.
  std::string store_prefix;

  bool alone() const { return size == 1; }
};

// The value of a variable or null: getenv. An empty value counts as none.
using Environment = std::function<const char*(const char*)>;

// The first of these that says something:
// - RANK and WORLD_SIZE, with LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT;
// - Open MPI's OMPI_COMM_WORLD_*, with MASTER_ADDR and MASTER_PORT: before Slurm's, since mpirun starts its
//   daemons, one on a node, as tasks of a Slurm step, and the ranks inherit the daemon's SLURM_PROCID;
// - Slurm's, of the step that srun started. Unless MASTER_ADDR and MASTER_PORT are given, the store is on the
//   step's first node, where rank 0 is, on a port from 61440 up that follows from job and step.
//
// What is in a Slurm job but not started by srun is alone, however many tasks the job has: sbatch's script
// (which sees SLURM_PROCID=0 and maybe SLURM_NTASKS=8, but no step, and ENVIRONMENT=BATCH), salloc's shell
// (no SLURM_PROCID, or a step of one task whatever SLURM_NTASKS says) and a shell by ssh. Where a step's own
// variables were not passed on, as into a container, SLURM_NTASKS counts in their place.
//
// UsageError naming variable and value where they contradict each other, are no numbers or leave out what
// the ranks need to find each other.
Place find_place(const Environment& environment);

}  // namespace dtopp
