// How fast steps are and what they take: arithmetic beside what the devices could do, bytes sent, memory.
#pragma once

#include <cstdint>
#include <optional>

#include "dtopp/distributed/groups/world.h"
#include "dtopp/train/step_result.h"

namespace dtopp {

struct StepRates {
  double tokens_per_second = 0;
  double tflops = 0;                       // of all ranks together, by `dtopp plan`'s count
  double mfu = 0;                          // share of what the ranks' matrix rate allows
  std::optional<double> mfu_of_peak = {};  // of what the data sheets of their devices promise
  double seconds_left = 0;                 // until the last step, at the recent pace
  uint64_t memory_bytes = 0;       // resident now; on a device with its own memory, what is taken of that
  uint64_t memory_peak_bytes = 0;  // the most it ever was
  // Where ranks exchange: what this one sent in the step, and on CPUs the share of the step that it waited
  // for it.
  std::optional<double> sent_bytes{}, exposed_share{};
};

// What a step is measured against.
struct StepYardstick {
  double flops_per_token = 0;
  double tokens = 0;  // of a step
  int64_t last_step = 0;
  double matrix_rate = 0;             // FLOP/s that one rank's device was measured to multiply with
  std::optional<double> peak_rate{};  // that its data sheet names
};

class StepMeter {
 public:
  StepMeter(const StepYardstick& yardstick, const World& world) : yardstick_(yardstick), world_(world) {}

  // As a step begins; not more than one result later its rates are asked for.
  void begin();
  StepRates rates(const StepResult& result);

 private:
  StepYardstick yardstick_;
  const World& world_;
  Traffic before_;
  double recent_seconds_ = 0;
};

}  // namespace dtopp
