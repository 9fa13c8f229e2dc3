// Runs the ranks of a command as child processes on this machine (--processes N).
#pragma once

#include <cstdint>

#include "dtopp/launch/child_process.h"

namespace dtopp::launch {
struct LocalRanks {
  int64_t count = 1;
  std::vector<std::string> arguments;  // of each rank, starting with the program's name
  // Port of the rendezvous store on 127.0.0.1. The caller keeps the store open while the ranks run. Its
  // sockets must be close-on-exec; otherwise every rank would keep them open.
  uint16_t store_port = 0;
  // Time between the first rank that ends with a status other than 0 and the kill of the remaining ranks.
  std::chrono::milliseconds grace{3000};
  std::filesystem::path program;  // empty: this program
};

// The result of all ranks.
struct RanksEnd {
  int status = 0;        // exit status for the launcher
  int64_t rank = -1;     // rank that decided the status; -1: none failed
  int signal = 0;        // signal that killed it; 0: none
  bool stopped = false;  // whether the launcher received a stop signal

  // "rank 2 was killed by signal 9 (Killed)", "rank 2 ended with status 3"; empty if none failed.
  std::string message() const;
};

// Starts the ranks and returns when all of them have ended. It never restarts a rank; run_with_restarts does.
//
// Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
// DTOPP_LAUNCHER=processes (launch/launch_environment.h) and the launcher's standard streams. Each one has a
// session of its own. A signal to the launcher's process group, from a terminal or kill(1), therefore reaches
// each rank once, through the launcher. A rank ends with status 127 if its program cannot be executed.
//
// The first rank to fail decides the status: its own, or 5 if a signal killed it. The other ranks get `grace`
// to notice and end. If several ranks are found dead at the same moment, one that a signal killed decides.
// Status 5, with which a rank ends if it lost another one, decides only if no rank ends otherwise within the
// grace period. If no rank failed, the status is 75 if any rank ended with 75, else 0. A rank that ends with
// 75 also starts the grace period, because ranks must not leave a stopped run while another one still saves.
//
// SIGTERM, SIGINT and SIGHUP are sent to all ranks once. A second SIGTERM or SIGINT, a tenth of a second or
// more after the first, kills them. The status is then 128 plus the signal's number. It is the same if the
// first signal kills a rank that has not installed its handler yet.
//
// Ranks die with the calling thread: call this function from the main thread, and only once at a time. Other
// threads may run, whatever signals they block. `signals` delivers SIGCHLD and the stop signals.
//
// Throws:        ResourceError, with no rank left running, if a process cannot be started
RanksEnd run_local_ranks(const LocalRanks& wanted, const SignalPipe& signals = SignalPipe());

// Whether the ranks of --processes start again after one of them was lost (--restarts).
struct Restart {
  bool again = false;
  std::chrono::milliseconds pause{0};  // before the ranks start again
  // "restart 1 of 3 from step 40", "not restarted: all 3 restarts are used"; empty if this end is none to
  // restart after.
  std::string message{};
};

// Counts the attempts of one run.
class Restarts {
 public:
  // `allowed`: the most restarts. `step`: of the run's newest checkpoint; 0 if there is none.
  Restarts(int64_t allowed, int64_t step) : allowed_(allowed), step_(step) {}

  // Call when all ranks of an attempt have ended. `step` is that of the newest checkpoint now.
  //
  // Only the loss of a rank (a signal that killed it, or status 5) leads to a restart, and none does after a
  // stop signal to the launcher. Two attempts in a row that end before a newer checkpoint are the last: the
  // next one would fail like them. The pauses are 1/8, 1/4, 1/2, 1, 2, 4, … 60 seconds.
  Restart after(const RanksEnd& end, int64_t step);

 private:
  int64_t allowed_;
  int64_t step_;
  int64_t used_ = 0;
  int64_t attempts_at_step_ = 0;  // that ended in a row while the newest checkpoint was that of step_
};

}  // namespace dtopp::launch
