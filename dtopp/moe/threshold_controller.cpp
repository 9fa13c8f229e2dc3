#include "dtopp/moe/threshold_controller.h"

#include <stdexcept>

namespace dtopp {

ThresholdController::ThresholdController(const RoutingConfig& config, int64_t num_experts, int64_t num_layers,
                                         const at::Device& device)
    : config_(config) {
  const int64_t controllers = per_layer() ? num_layers : 1;
  const auto options = at::device(device).dtype(at::kDouble);
  num_experts_ = at::full({}, static_cast<double>(num_experts), options);
  threshold_C_ = at::full({controllers}, config.threshold, options);
  error_sum_C_ = at::zeros({controllers}, options);
  if (config.method != RoutingMethod::kDTopP || num_layers == 0) return;
  std::vector<double> targets;
  for (int64_t i = 0; i < controllers; ++i) targets.push_back(target_of_layer(config, i));
  target_C_ = at::tensor(targets, at::kDouble).to(device);
}

void ThresholdController::update(const at::Tensor& selected_L, int64_t tokens, const at::Tensor& applied) {
  if (config_.method != RoutingMethod::kDTopP || tokens == 0) return;
  const at::Tensor selected_C = per_layer() ? selected_L : selected_L.sum().view({1});
  const int64_t routed = per_layer() ? tokens : tokens * selected_L.numel();
  // Divisors are tensors: a device multiplies by the reciprocal of a number, which rounds differently.
  const at::Tensor active_C =
      selected_C.to(at::kDouble) / at::full({}, static_cast<double>(routed), threshold_C_.options());
  const at::Tensor error_C = (target_C_ - active_C) / num_experts_;
  at::Tensor error_sum_C = error_sum_C_ + error_C;
  const at::Tensor p_C = error_C * config_.kp + config_.threshold + error_sum_C * config_.ki;
  if (config_.anti_windup) {
    const at::Tensor winds_up_C = p_C.gt(kMaxThreshold)
                                      .logical_and_(error_C.gt(0))
                                      .logical_or_(p_C.lt(kMinThreshold).logical_and_(error_C.lt(0)));
    error_sum_C = at::where(winds_up_C, error_sum_C_, error_sum_C);
  }
  error_sum_C_ = at::where(applied, error_sum_C, error_sum_C_);
  threshold_C_ = at::where(applied, p_C.clamp(kMinThreshold, kMaxThreshold), threshold_C_);
}

void ThresholdController::restore(const std::vector<double>& thresholds,
                                  const std::vector<double>& error_sums) {
  const auto controllers = static_cast<size_t>(threshold_C_.numel());
  if (thresholds.size() != controllers || error_sums.size() != controllers) {
    throw std::invalid_argument("ThresholdController: state for " + std::to_string(thresholds.size()) +
                                " controllers, expected " + std::to_string(controllers));
  }
  const at::Device device = threshold_C_.device();
  threshold_C_ = at::tensor(thresholds, at::kDouble).to(device);
  error_sum_C_ = at::tensor(error_sums, at::kDouble).to(device);
}

}  // namespace dtopp
