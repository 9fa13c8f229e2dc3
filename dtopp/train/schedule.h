// The learning rate: linear warm-up from 0, then a cosine that reaches min_lr at the last step.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "dtopp/config/run_config.h"

namespace dtopp {

// step counts from 1 to `steps`.
inline double learning_rate(const OptimizerConfig& config, int64_t step, int64_t steps) {
  if (step < config.warmup_steps) {
    return config.lr * static_cast<double>(step) / static_cast<double>(config.warmup_steps);
  }
  const int64_t length = std::max<int64_t>(steps - config.warmup_steps, 1);
  const double progress = static_cast<double>(step - config.warmup_steps) / static_cast<double>(length);
  return config.min_lr +
         (config.lr - config.min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * std::min(progress, 1.0)));
}

}  // namespace dtopp
