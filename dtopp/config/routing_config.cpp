#include "dtopp/config/routing_config.h"

#include <string>

#include "dtopp/config/config.h"
#include "dtopp/config/value_bounds.h"

namespace dtopp {
namespace {

std::string text_of(double value) { return config_detail::print_value(value); }

void validate_cap(const RoutingConfig& config, int64_t num_experts) {
  if (config.max_experts < 0 || config.max_experts > num_experts)
    throw InvalidValue("routing.max_experts", "must lie in [0, " + std::to_string(num_experts) +
                                                  "] (model.num_experts; 0: no cap), is " +
                                                  std::to_string(config.max_experts));
}

void validate_top_k(const RoutingConfig& config, int64_t num_experts) {
  if (config.top_k < 1 || config.top_k > num_experts)
    throw InvalidValue("routing.top_k", "must lie in [1, " + std::to_string(num_experts) +
                                            "] (model.num_experts), is " + std::to_string(config.top_k));
  if (config.max_experts > 0 && config.max_experts < config.top_k)
    throw InvalidValue("routing.max_experts", std::to_string(config.max_experts) +
                                                  " is below routing.top_k " + std::to_string(config.top_k));
}

void validate_threshold(const RoutingConfig& config) {
  if (!(config.threshold > 0 && config.threshold < 1))
    throw InvalidValue("routing.threshold",
                       "must lie between 0 and 1, both excluded, is " + text_of(config.threshold));
}

void validate_targets(const RoutingConfig& config, int64_t num_experts, int64_t num_layers) {
  const auto count = static_cast<int64_t>(config.target_experts.size());
  if (count == 0) throw InvalidValue("routing.target_experts", "names no target");
  if (count > 1 && config.scope != ThresholdScope::kLayer)
    throw InvalidValue("routing.target_experts",
                       "a list needs routing.scope: layer; one threshold has one target");
  if (count > 1 && count != num_layers)
    throw InvalidValue("routing.target_experts", "has " + std::to_string(count) + " values for " +
                                                     std::to_string(num_layers) +
                                                     " layers (model.num_layers)");
  for (const double target : config.target_experts) {
    if (!(target >= 1 && target <= static_cast<double>(num_experts)))
      throw InvalidValue("routing.target_experts", "must lie in [1, " + std::to_string(num_experts) +
                                                       "] (model.num_experts), is " + text_of(target));
    if (config.max_experts > 0 && target > static_cast<double>(config.max_experts))
      throw InvalidValue(
          "routing.max_experts",
          std::to_string(config.max_experts) + " is below the target of " + text_of(target) + " experts");
  }
}

}  // namespace

void validate(const RoutingConfig& config, int64_t num_experts, int64_t num_layers) {
  validate_cap(config, num_experts);
  if (config.method == RoutingMethod::kTopK) {
    validate_top_k(config, num_experts);
    return;
  }
  validate_threshold(config);
  if (config.method != RoutingMethod::kDTopP) return;
  validate_targets(config, num_experts, num_layers);
  require_not_negative("routing.kp", config.kp);
  require_not_negative("routing.ki", config.ki);
}

}  // namespace dtopp
