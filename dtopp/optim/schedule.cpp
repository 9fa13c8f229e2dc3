#include "dtopp/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dtopp::optim {
namespace {

// The progress of `step` from `begin` to `end`, from 0 to 1.
double progress(int64_t step, int64_t begin, int64_t end) {
  const int64_t length = std::max<int64_t>(end - begin, 1);
  return std::clamp(static_cast<double>(step - begin) / static_cast<double>(length), 0.0, 1.0);
}

double along_cosine(const config::OptimizerConfig& config, double share) {
  return config.min_lr + (config.lr - config.min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * share));
}

// Exactly lr and min_lr at the ends.
double along_line(const config::OptimizerConfig& config, double share) {
  return std::lerp(config.lr, config.min_lr, share);
}

}  // namespace

double learning_rate(const config::OptimizerConfig& config, int64_t step, int64_t steps) {
  if (step < config.warmup_steps)
    return config.lr * static_cast<double>(step) / static_cast<double>(config.warmup_steps);
  switch (config.schedule) {
    case config::Schedule::kCosine:
      return along_cosine(config, progress(step, config.warmup_steps, steps));
    case config::Schedule::kLinear:
      return along_line(config, progress(step, config.warmup_steps, steps));
    case config::Schedule::kWsd:
      return along_line(config, progress(step, steps - config.decay_steps, steps));
    case config::Schedule::kConstant:
      break;
  }
  return config.lr;
}

LearningRates learning_rates(const config::OptimizerConfig& config, int64_t step, int64_t steps) {
  const double lr = learning_rate(config, step, steps);
  return {lr, lr * config.router_lr_factor * progress(step, 0, config.router_warmup_steps)};
}

}  // namespace dtopp::optim
