// Makes every decision about a step from the step's numbers alone, which are the same on all ranks.
#pragma once

#include "dtopp/config/run_config.h"
#include "dtopp/train/step_result.h"

namespace dtopp::train {

// Whether the step is abandoned before its numbers are complete. With several ranks it never is: the other
// ranks wait for it, so it is finished, and its numbers report the request to stop.
inline bool is_abandoned(const StepSums& sums, int64_t ranks) { return sums.stop_requested && ranks == 1; }

// Tensors on the step's device; the host does not wait for them.
struct StepDecision {
  at::Tensor applied;  // bool []: update parameters and controller; if false, only the position advances
  at::Tensor divisor;  // f32 []: the gradients are divided by it
};

// Applies the step if loss, gradients and the squares of the gradients are finite and no capacity was
// exceeded. Clips the gradients' norm to optimizer.grad_clip.
StepDecision decide(const StepNumbers& numbers, const config::OptimizerConfig& config);

// Whether this step and all later ones must run again from the state before it. Requires the step's numbers.
inline bool must_run_again(const StepResult& result) { return result.overflowed; }

// Whether the run ends because too many steps in a row were not finite.
inline bool gives_up(const StepResult& result, const config::TrainingConfig& config) {
  return result.skipped && result.consecutive_skips > config.max_skips;
}

}  // namespace dtopp::train
