// Computes the learning rate of each step. All schedules rise linearly from 0 for warmup_steps. Then
//
//   cosine    falls along half a cosine to min_lr at the last step
//   linear    falls linearly to min_lr at the last step
//   constant  stays
//   wsd       stays until decay_steps before the end, then falls linearly to min_lr at the last step
#pragma once

#include <cstdint>

#include "dtopp/config/optimizer_config.h"

namespace dtopp::optim {

struct LearningRates {
  double lr = 0;
  double router = 0;  // of the routers' matrices and theta
};

// The rates of a step. The router's is lr times optimizer.router_lr_factor and, within the first
// router_warmup_steps, times the share of them that has passed.
LearningRates learning_rates(const config::OptimizerConfig& config, int64_t step, int64_t steps);
// The first of them. `step` counts from 1 to `steps`.
double learning_rate(const config::OptimizerConfig& config, int64_t step, int64_t steps);

}  // namespace dtopp::optim
