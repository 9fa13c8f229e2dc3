// Measures the speed of steps, their MFU, sent bytes and memory.
#pragma once

#include <cstdint>
#include <optional>

#include "dtopp/distributed/groups/process_groups.h"
#include "dtopp/train/step_result.h"

namespace dtopp::train {

struct StepRates {
  double tokens_per_second = 0;
  double seconds = 0;              // in steps so far, without validations, saves and pauses
  double tflops = 0;               // of all ranks together, for the experts that tokens activated
  std::optional<double> mfu = {};  // relative to the data sheets of the devices, if they are known
  double seconds_left = 0;         // until the last step, at the recent speed
  uint64_t memory_bytes = 0;       // now: resident, or allocated on a device with separate memory
  uint64_t memory_peak_bytes = 0;  // its maximum so far
  // With several ranks: bytes that this rank sent in the step, and on CPUs the share of the step that it
  // waited for communication.
  std::optional<double> sent_bytes{}, exposed_share{};
};

// The reference values for a step.
struct StepYardstick {
  double fixed_flops_per_token = 0;
  double flops_per_expert = 0;  // per token, for one more active expert in each layer
  double tokens = 0;            // per step
  int64_t last_step = 0;
  double seconds_before = 0;          // in steps of earlier processes of this run
  double matrix_rate = 0;             // measured FLOP/s of one rank's device
  std::optional<double> peak_rate{};  // FLOP/s in its data sheet
};

class StepMeter {
 public:
  StepMeter(const StepYardstick& yardstick, const distributed::ProcessGroups& groups)
      : yardstick_(yardstick), groups_(groups), seconds_(yardstick.seconds_before) {}

  // Call at the start of a step. The previous step's result may still be outstanding.
  void begin();
  StepRates rates(const StepResult& result);

 private:
  StepYardstick yardstick_;
  const distributed::ProcessGroups& groups_;
  distributed::Traffic before_;
  double seconds_, recent_seconds_ = 0;
};

}  // namespace dtopp::train
