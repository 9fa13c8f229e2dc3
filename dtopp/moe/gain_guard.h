// Will the controller settle? The plant, active experts against p, is estimated from tokens whose logits are
// normalised Gaussians (theta = 1); linearised at the target it has gain g = (da/dp) / E, and the closed loop
//   z^2 - z (1 - (K_p + K_i) g) - K_p g = 0
// is stable exactly when g (2 K_p + K_i) < 2 (and g K_i > 0).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dtopp/config/routing_config.h"

namespace dtopp {

struct PlantEstimate {
  double threshold;   // p at which the mean number of active experts is the target
  double active_std;  // standard deviation of the count there
  double gain;        // g
};

// Deterministic; a few milliseconds. target in [1, num_experts].
PlantEstimate estimate_plant(int64_t num_experts, double target);

// A one-line warning that names stable gains, where the configured ones would oscillate or never settle.
std::optional<std::string> gain_warning(const RoutingConfig& config, int64_t num_experts);

}  // namespace dtopp
