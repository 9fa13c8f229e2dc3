// Does the controller hold its budget? Routers that have become sharp answer more steeply to p than those
// that gain_guard.h knows: gains that were stable then let a layer swing between one expert and all, at many
// times the cost.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/config/routing_config.h"

namespace dtopp {

class BudgetWatch {
 public:
  // Steps before the first that counts, in which a controller may still be on its way; steps looked back on.
  static constexpr int64_t kSettling = 100;
  static constexpr size_t kSteps = 32;

  explicit BudgetWatch(const RoutingConfig& config) : config_(config) {}

  // A step had so many active experts a token in each routed layer. Once in its life a line that says what
  // does not hold and what would: where a controller's mean was off T by more than T / 2, on average over the
  // last kSteps steps. Nothing unless the method is dtop_p.
  std::optional<std::string> see(int64_t step, const std::vector<double>& active_L);

 private:
  RoutingConfig config_;
  std::vector<std::deque<double>> last_C_;  // of each controller
  bool said_ = false;
};

}  // namespace dtopp
