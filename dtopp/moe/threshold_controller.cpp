#include "dtopp/moe/threshold_controller.h"

#include <limits>
#include <stdexcept>

#include "dtopp/ops/core/host_copy.h"

namespace dtopp::moe {
namespace {

constexpr double kMostOwed = 0.5;  // relative to T: the limit of sum_e
// The share of sum_e that one step corrects. A full correction would follow the noise of every batch. With
// one half, thresholds miss by 1.2 instead of 1.4 times the distance that the required threshold moves
// between steps.
constexpr double kMadeUpFor = 0.5;
constexpr double kMostMadeUpFor = 0.1;  // relative to T: the limit of one correction

// Divisors are tensors: a device multiplies by the reciprocal of a scalar, which rounds differently.
at::Tensor number(double value, const at::Tensor& like) { return at::full({}, value, like.options()); }

}  // namespace

// The curve of a step, shifted so that at the step's p it has the count of all tokens.
class ThresholdController::Plant {
 public:
  Plant(const ActiveExpertCurve& curve, const at::Tensor& p_C, const at::Tensor& active_C,
        double histogram_tokens)
      : curve_(curve), active_C_(active_C), below_C_(curve.below(p_C)), tokens_(histogram_tokens) {}

  // p at which a token has the given number of experts.
  at::Tensor threshold(const at::Tensor& experts_C) const {
    return curve_.threshold(below_C_ + (experts_C - active_C_) * tokens_);
  }

 private:
  const ActiveExpertCurve& curve_;
  at::Tensor active_C_, below_C_;
  double tokens_;
};

ThresholdController::ThresholdController(const config::RoutingConfig& config, int64_t num_experts,
                                         int64_t num_layers, const at::Device& device)
    : config_(config) {
  const int64_t controllers = per_layer() ? num_layers : 1;
  const auto options = at::device(device).dtype(at::kDouble);
  num_experts_ = at::full({}, static_cast<double>(num_experts), options);
  threshold_C_ = at::full({controllers}, config.threshold, options);
  error_sum_C_ = at::zeros({controllers}, options);
  solved_C_ = at::full({controllers}, std::numeric_limits<double>::quiet_NaN(), options);
  steps_ = at::zeros({}, options.dtype(at::kLong));
  set_targets(config.experts, config.experts);
  edges_ = cumulative_prob_bin_edges(device);
}

void ThresholdController::set_targets(const std::vector<double>& experts,
                                      const std::vector<double>& next_experts) {
  const auto on_device = [&](const std::vector<double>& targets) {
    const at::Tensor target_C = at::tensor(targets, at::kDouble);
    return ops::to_device(target_C.expand(threshold_C_.sizes()).contiguous(), threshold_C_.device());
  };
  target_C_ = on_device(experts);
  next_target_C_ = on_device(next_experts);
}

void ThresholdController::start_at(const std::vector<double>& thresholds) {
  threshold_C_ = ops::to_device(at::tensor(thresholds, at::kDouble), threshold_C_.device());
  if (config_.controller == config::Controller::kPi)
    error_sum_C_ = (threshold_C_ - config_.threshold) / number(config_.ki, threshold_C_);
}

void ThresholdController::update(const RoutedStep& step, const at::Tensor& applied) {
  if (step.tokens == 0) return;
  const at::Tensor num_assignments_C =
      per_layer() ? step.num_assignments_L : step.num_assignments_L.sum().view({1});
  const int64_t tokens = per_layer() ? step.tokens : step.tokens * step.num_assignments_L.numel();
  const at::Tensor active_C =
      num_assignments_C.to(at::kDouble) / number(static_cast<double>(tokens), threshold_C_);
  const at::Tensor error_C = (target_C_ - active_C) / num_experts_;
  const bool has_histogram = step.prob_histogram_CM.defined();
  if (!has_histogram && config_.controller == config::Controller::kSolve)
    throw std::invalid_argument(
        "ThresholdController: this configuration needs the cumulative probabilities of each step");
  Next next;
  if (has_histogram) {
    const ActiveExpertCurve curve(step.prob_histogram_CM, edges_);
    const Plant plant(curve, threshold_C_, active_C,
                      static_cast<double>(tokens) / static_cast<double>(step.histogram_stride));
    solved_C_ = plant.threshold(target_C_);
    next = config_.controller == config::Controller::kSolve ? solve(error_C, plant) : paper_law(error_C);
  } else {
    next = paper_law(error_C);
  }
  error_sum_C_ = at::where(applied, next.error_sum_C, error_sum_C_);
  threshold_C_ = at::where(applied, next.threshold_C, threshold_C_);
  steps_ = steps_ + applied.to(at::kLong);
}

ThresholdController::Next ThresholdController::paper_law(const at::Tensor& error_C) const {
  Next next{{}, error_sum_C_ + error_C};
  const at::Tensor p_C = error_C * config_.kp + config_.threshold + next.error_sum_C * config_.ki;
  if (config_.anti_windup) {
    const at::Tensor winds_up_C = p_C.gt(kMaxThreshold)
                                      .logical_and_(error_C.gt(0))
                                      .logical_or_(p_C.lt(kMinThreshold).logical_and_(error_C.lt(0)));
    next.error_sum_C = at::where(winds_up_C, error_sum_C_, next.error_sum_C);
  }
  next.threshold_C = p_C.clamp(kMinThreshold, kMaxThreshold);
  return next;
}

ThresholdController::Next ThresholdController::solve(const at::Tensor& error_C, const Plant& plant) const {
  const at::Tensor unit_C = target_C_ / num_experts_;
  // Exclude the step that used p_0: the user chose it.
  const at::Tensor sum_C = error_sum_C_ + error_C * steps_.gt(0);
  const at::Tensor most_C = unit_C * kMostOwed, most_now_C = unit_C * kMostMadeUpFor;
  Next next{{}, at::maximum(at::minimum(sum_C, most_C), -most_C)};
  const at::Tensor now_C = at::maximum(at::minimum(next.error_sum_C * kMadeUpFor, most_now_C), -most_now_C);
  next.threshold_C = plant.threshold(next_target_C_ + now_C * num_experts_);
  return next;
}

bool ThresholdController::set_state(const std::string& name, const at::Tensor& value) {
  if (name == "threshold_C")
    threshold_C_ = value;
  else if (name == "error_sum_C")
    error_sum_C_ = value;
  else if (name == "steps")
    steps_ = value;
  else
    return false;
  return true;
}

}  // namespace dtopp::moe
