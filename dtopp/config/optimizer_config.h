// Defines the `optimizer` section: AdamW and its learning-rate schedule.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "dtopp/config/config_tree.h"

namespace dtopp::config {

enum class Schedule { kCosine, kWsd, kConstant, kLinear };  // of the learning rate (optim/optimizer.h)

constexpr auto enum_names(Schedule) {
  return std::array<std::pair<Schedule, std::string_view>, 4>{{{Schedule::kCosine, "cosine"},
                                                               {Schedule::kWsd, "wsd"},
                                                               {Schedule::kConstant, "constant"},
                                                               {Schedule::kLinear, "linear"}}};
}

struct OptimizerConfig {
  double lr = 3.0e-3;
  double min_lr = 3.0e-5;
  Schedule schedule = Schedule::kCosine;
  int64_t warmup_steps = 2500;
  double router_lr_factor = 1.0;    // of the rate of the routers' parameters (optim/optimizer.h)
  int64_t router_warmup_steps = 0;  // in which it rises from 0, too
  int64_t decay_steps = 0;          // wsd: number of last steps in which lr falls to min_lr
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1.0e-8;
  double weight_decay = 3.3e-2;
  double grad_clip = 1.0;  // global norm; 0: off
};

void visit_fields(SectionOf<OptimizerConfig> auto& config, auto&& field) {
  field("lr", config.lr);
  field("min_lr", config.min_lr);
  field("schedule", config.schedule);
  field("warmup_steps", config.warmup_steps);
  field("router_lr_factor", config.router_lr_factor);
  field("router_warmup_steps", config.router_warmup_steps);
  field("decay_steps", config.decay_steps);
  field("betas", config.betas);
  field("eps", config.eps);
  field("weight_decay", config.weight_decay);
  field("grad_clip", config.grad_clip);
}

// Throws InvalidValue (config/config.h). `steps` is training.steps.
void validate(const OptimizerConfig& config, int64_t steps);

}  // namespace dtopp::config
