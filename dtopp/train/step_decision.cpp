#include "dtopp/train/step_decision.h"

namespace dtopp::train {
namespace {

// The squares of the gradients' elements then fit f32, and so do the second moments.
constexpr double kLargestNorm = 1e19;

}  // namespace

StepDecision decide(const StepNumbers& numbers, const config::OptimizerConfig& config) {
  const at::Tensor norm = numbers["grad_squares"].sqrt();
  const double clip = config.grad_clip;
  const at::Tensor divisor =
      (clip > 0 ? ((norm + 1e-6) / clip).clamp_min(1.0) : at::ones_like(norm)).to(at::kFloat);
  return {at::isfinite(numbers["losses"][0])
              .logical_and(at::isfinite(divisor))
              .logical_and((norm / divisor).le(kLargestNorm))
              .logical_and(numbers["overflowed"].eq(0)),
          divisor};
}

}  // namespace dtopp::train
