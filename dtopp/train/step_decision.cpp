#include "dtopp/train/step_decision.h"

namespace dtopp::train {

StepDecision decide(const StepNumbers& numbers, const config::OptimizerConfig& config) {
  const at::Tensor norm = numbers["grad_squares"].sqrt();
  const double clip = config.grad_clip;
  const at::Tensor divisor = clip > 0 ? ((norm + 1e-6) / clip).clamp_min(1.0) : at::ones_like(norm);
  return {at::isfinite(numbers["losses"][0])
              .logical_and(at::isfinite(norm))
              .logical_and(numbers["overflowed"].eq(0)),
          divisor.to(at::kFloat)};
}

}  // namespace dtopp::train
