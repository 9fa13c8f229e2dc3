// Everything that is decided about a step, each from its numbers alone, which are the same on all ranks.
#pragma once

#include "dtopp/config/run_config.h"
#include "dtopp/train/step_result.h"

namespace dtopp {

// Before the numbers are complete: whether the step ends here and has not happened. Never where other ranks
// wait for it: there it is finished, and all learn of the wish from its numbers.
inline bool is_abandoned(const StepSums& sums, int64_t ranks) { return sums.stop_asked && ranks == 1; }

// On the step's device, for which the host does not wait.
struct StepDecision {
  at::Tensor applied;  // bool []: parameters and controller move; else nothing but the position does
  at::Tensor divisor;  // f32 [], of the gradients
};

// Applied where loss and gradients are finite and there was room for every pair; gradients are cut to
// optimizer.grad_clip.
StepDecision decide(const StepNumbers& numbers, const OptimizerConfig& config);

// When the numbers have come: whether the step, and those after it, must run again from the state before it.
inline bool must_run_again(const StepResult& result) { return result.halted; }

// Whether the run ends for steps that were not finite.
inline bool gives_up(const StepResult& result, const TrainingConfig& config) {
  return result.skipped && result.consecutive_skips > config.max_skips;
}

}  // namespace dtopp
