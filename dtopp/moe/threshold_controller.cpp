#include "dtopp/moe/threshold_controller.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace dtopp {

ThresholdController::ThresholdController(const RoutingConfig& config, int64_t num_experts, int64_t num_layers)
    : config_(config), num_experts_(num_experts) {
  const size_t controllers = per_layer() ? static_cast<size_t>(num_layers) : 1;
  threshold_.assign(controllers, config.threshold);
  error_sum_.assign(controllers, 0.0);
}

double ThresholdController::threshold(int64_t layer) const {
  return threshold_[per_layer() ? static_cast<size_t>(layer) : 0];
}

void ThresholdController::update(std::span<const int64_t> selected, int64_t tokens) {
  if (config_.method != RoutingMethod::kDTopP || tokens == 0) return;
  if (per_layer()) {
    for (size_t layer = 0; layer < threshold_.size(); ++layer) {
      const double active = static_cast<double>(selected[layer]) / static_cast<double>(tokens);
      update_one(layer, active, target_of_layer(config_, static_cast<int64_t>(layer)));
    }
    return;
  }
  const int64_t total = std::accumulate(selected.begin(), selected.end(), int64_t{0});
  const auto pairs = static_cast<double>(tokens * static_cast<int64_t>(selected.size()));
  update_one(0, static_cast<double>(total) / pairs, target_of_layer(config_, 0));
}

void ThresholdController::update_one(size_t index, double active_experts, double target) {
  const double error = (target - active_experts) / static_cast<double>(num_experts_);
  const double error_sum = error_sum_[index] + error;
  const double p = config_.threshold + config_.kp * error + config_.ki * error_sum;
  const bool winds_up = (p > kMaxThreshold && error > 0) || (p < kMinThreshold && error < 0);
  if (!(config_.anti_windup && winds_up)) error_sum_[index] = error_sum;
  threshold_[index] = std::clamp(p, kMinThreshold, kMaxThreshold);
}

void ThresholdController::restore(const std::vector<double>& thresholds,
                                  const std::vector<double>& error_sums) {
  if (thresholds.size() != threshold_.size() || error_sums.size() != error_sum_.size()) {
    throw std::invalid_argument("ThresholdController: state for " + std::to_string(thresholds.size()) +
                                " controllers, expected " + std::to_string(threshold_.size()));
  }
  threshold_ = thresholds;
  error_sum_ = error_sums;
}

}  // namespace dtopp
