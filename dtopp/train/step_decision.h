// Everything that is decided about a step, each from its numbers alone. Today these are one process's own;
// where many train together they are the sum over all, and every process decides the same.
#pragma once

#include "dtopp/config/run_config.h"
#include "dtopp/train/step_result.h"

namespace dtopp {

// Before the numbers are complete: whether the step ends here and has not happened.
inline bool is_abandoned(const StepSums& sums) { return sums.stop_asked; }

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
