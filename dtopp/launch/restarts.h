// Decides whether the ranks of --processes start again after one of them was lost (--restarts).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "dtopp/launch/local_ranks.h"

namespace dtopp::launch {

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
