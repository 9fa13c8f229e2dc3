#include "dtopp/train/step_decision.h"

namespace dtopp {

StepDecision decide(const StepNumbers& numbers, const OptimizerConfig& config) {
  const at::Tensor norm = numbers.grad_norm();
  const double clip = config.grad_clip;
  const at::Tensor divisor = clip > 0 ? ((norm + 1e-6) / clip).clamp_min(1.0) : at::ones_like(norm);
  return {at::isfinite(numbers.loss_sums()[0])
              .logical_and(at::isfinite(norm))
              .logical_and(numbers.overflowed().logical_not()),
          divisor.to(at::kFloat)};
}

}  // namespace dtopp
