// Checks whether the threshold controller meets its target.
//
// Sharp routers respond more steeply to p. Controller gains that were stable earlier can make a layer
// oscillate between one expert and all experts, at a multiple of the cost.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/config/routing_config.h"

namespace dtopp::moe {

class BudgetWatch {
 public:
  // Steps that do not count because the controller may still converge, and the length of the observed window.
  static constexpr int64_t kSettling = 100;
  static constexpr size_t kSteps = 32;

  // steps: training.steps.
  BudgetWatch(const config::RoutingConfig& config, int64_t steps) : config_(config), steps_(steps) {}

  // Records one step with the active experts per token of each routed layer.
  //
  // Returns a warning with advice, once per object: when a controller's mean differs from T by more than T /
  // 2 on average over the last kSteps steps. Returns nothing unless a controller moves p.
  std::optional<std::string> observe(int64_t step, const std::vector<double>& active_L);

 private:
  config::RoutingConfig config_;
  int64_t steps_;
  std::vector<std::deque<double>> last_C_;  // per controller
  bool warned_ = false;
};

}  // namespace dtopp::moe
