// --processes N: the ranks of a verb as child processes on this machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace dtopp {

struct LocalRanks {
  int64_t count = 1;
  std::vector<std::string> arguments;  // of each rank, the program's name first
  // Of the rendezvous store on 127.0.0.1. The caller holds it for as long as the ranks run; its sockets are
  // close-on-exec, else every rank would keep them open.
  uint16_t store_port = 0;
  // From the first rank that did not end with 0 until those still there are killed.
  std::chrono::milliseconds grace{3000};
  std::filesystem::path program;  // this one where it is empty
};

// How the ranks ended.
struct RanksEnd {
  int status = 0;     // for the launcher to end with
  int64_t rank = -1;  // the one that decided; -1 where none failed
  int signal = 0;     // what killed it

  // "rank 2 was killed by signal 9 (Killed)", "rank 2 ended with status 3"; empty where none failed.
  std::string message() const;
};

// Starts the ranks and returns when all have ended; restarts none. Each finds itself by RANK, WORLD_SIZE,
// LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and DTOPP_LAUNCHER=processes (launch/place.h), has
// the launcher's standard streams and a session of its own, so that what a terminal or kill(1) sends to the
// launcher's process group comes once and through the launcher. A rank whose program cannot be executed ends
// with 127.
//
// The first rank to fail decides: its status, or 5 where a signal killed it; the others get `grace` to notice
// and end by themselves. Of ranks found dead at the same moment the one that a signal killed is the first. A
// status of 5, as a rank has that lost another, decides only where no rank ends otherwise within the grace.
// Where none failed the status is 75 if any rank ended with that, else 0. A rank that ends with 75 starts the
// grace too: ranks must not leave a stopped run while another one still saves.
//
// SIGTERM and SIGINT go to all ranks once. A second one, a tenth of a second or more after the first, kills
// them: 128 + its number is the status then, as it is where the first one killed a rank that was not yet
// ready for it.
//
// Ranks die with the thread that calls: call it from the main one, and only once at a time. Other threads may
// run, whatever signals they block. SIGCHLD, SIGTERM and SIGINT are the function's until it returns; then
// their handlers are the caller's again. ResourceError, and no rank left, where a process cannot be started.
RanksEnd run_local_ranks(const LocalRanks& wanted);

}  // namespace dtopp
