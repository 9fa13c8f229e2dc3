// What is reported of an optimiser step, and its way to the host: a step leaves its numbers on its device and
// ends; the host reads them when they have come.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtopp/ops/core/host_copy.h"
#include "dtopp/train/step_numbers.h"

namespace dtopp {

struct StepResult {
  int64_t step = 0;                                    // counts from 1
  int64_t tokens = 0;                                  // trained on so far, this step's included
  int64_t sample_position = 0;                         // the next sample of the global order
  double loss = 0;                                     // total, weighted
  std::vector<std::pair<std::string, double>> losses;  // unweighted, one a term
  double grad_norm = 0;                                // before clipping
  double lr = 0;
  bool skipped = false;            // non-finite: nothing was changed but the position
  int64_t skipped_steps = 0;       // so far, this one included
  int64_t consecutive_skips = 0;   // of which the last ones in a row
  std::vector<double> thresholds;  // p used, one a routed layer
  std::vector<double> solved;      // p that would have met the target, one a routed layer; empty: no target
  std::vector<double> scales;      // theta used, one a routed layer; empty unless dynamic
  ActivationStatistics activations;
  std::vector<int64_t> most_pairs_L;  // token-expert pairs of a micro-batch, at most; one a routed layer
  std::vector<int64_t> parts_R;  // that each rank cut its micro-batches into: 1, or more for want of memory
  bool halted = false;           // it, or one before it, had no room for its pairs
  bool stop_asked = false;       // on any rank, while it ran
  double seconds = 0;            // the whole step
  double data_seconds = 0;       // of which waiting for data

  // The unweighted loss of a name; std::invalid_argument where there is none.
  double loss_named(std::string_view name) const;
};

// What a step was run with and what came of it, besides its numbers; on its device.
struct StepStates {
  at::Tensor applied;      // bool []
  at::Tensor threshold_C;  // used
  at::Tensor scale_L;      // used; [0] unless dynamic
  at::Tensor solved_C;     // [0] where there is no target
  at::Tensor new_threshold_C, new_error_sum_C;
};

class StepInFlight {
 public:
  // `known`: what the host knows of the step when it has been issued. begun: seconds of a steady clock.
  StepInFlight(StepResult known, const StepNumbers& numbers, const StepStates& states, double begun);

  double begun() const { return begun_; }

  struct Arrival {
    StepResult result;
    std::vector<double> thresholds, error_sums;  // the controller's state after the step
  };
  // Waits for the numbers.
  Arrival read() const;

 private:
  StepResult known_;
  StepShape shape_;
  int64_t controllers_, scales_, solved_;
  HostCopy copy_;
  double begun_;
};

}  // namespace dtopp
