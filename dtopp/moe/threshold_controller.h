// The PI controller that holds the average number of active experts at its target (paper, Eqs. 4, 5, 8, 9 and
// Algorithm 1). After each optimiser step, with a the mean number of experts a token chose (over every
// micro-batch, rank and, for scope global, layer):
//
//   e = (T - a) / E        sum_e += e        p <- p_0 + K_p e + K_i sum_e,  clipped to [1e-6, 1 - 1e-6]
//
// Anti-windup: where that p lies beyond a bound and e pushes outwards, e is left out of sum_e and p is the
// bound.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dtopp/moe/routing_config.h"

namespace dtopp {

inline constexpr double kMinThreshold = 1e-6;
inline constexpr double kMaxThreshold = 1.0 - 1e-6;

class ThresholdController {
 public:
  ThresholdController(const RoutingConfig& config, int64_t num_experts, int64_t num_layers);

  // p of a layer for the coming step. Constant unless the method is dtop_p; unused by top_k.
  double threshold(int64_t layer) const;

  // One optimiser step has passed: `selected[l]` token-expert pairs in layer l, over `tokens` tokens. Does
  // nothing unless the method is dtop_p.
  void update(std::span<const int64_t> selected, int64_t tokens);

  bool per_layer() const {
    return config_.method == RoutingMethod::kDTopP && config_.scope == ThresholdScope::kLayer;
  }
  // One value, or one per layer: the state a checkpoint keeps.
  const std::vector<double>& thresholds() const { return threshold_; }
  const std::vector<double>& error_sums() const { return error_sum_; }
  // std::invalid_argument when the sizes are not those of this controller.
  void restore(const std::vector<double>& thresholds, const std::vector<double>& error_sums);

 private:
  void update_one(size_t index, double active_experts, double target);

  RoutingConfig config_;
  int64_t num_experts_;
  std::vector<double> threshold_;
  std::vector<double> error_sum_;
};

}  // namespace dtopp
