// The PI controller that holds the average number of active experts at its target (paper, Eqs. 4, 5, 8, 9 and
// Algorithm 1). After each optimiser step, with a the mean number of experts a token chose (over every
// micro-batch, rank and, for scope global, layer):
//
//   e = (T - a) / E        sum_e += e        p <- p_0 + K_p e + K_i sum_e,  clipped to [1e-6, 1 - 1e-6]
//
// Anti-windup: where that p lies beyond a bound and e pushes outwards, e is left out of sum_e and p is the
// bound.
//
// Its state lies on the device that counts the experts, in doubles, so that a step does not wait for it; the
// same operations in the same order give the same bits everywhere.
#pragma once

#include <cstdint>
#include <vector>

#include "dtopp/config/routing_config.h"
#include "dtopp/ops/torch.h"

namespace dtopp {

inline constexpr double kMinThreshold = 1e-6;
inline constexpr double kMaxThreshold = 1.0 - 1e-6;

class ThresholdController {
 public:
  // num_layers: those with a router; 0 for a dense model, whose targets are not looked at.
  ThresholdController(const RoutingConfig& config, int64_t num_experts, int64_t num_layers,
                      const at::Device& device = at::kCPU);

  // p of a layer for the coming step, f64 []. Constant unless the method is dtop_p; unused by top_k.
  at::Tensor threshold(int64_t layer) const { return threshold_C_[per_layer() ? layer : 0]; }

  // One optimiser step has passed: selected_L token-expert pairs in each layer, whole numbers of any
  // type, over `tokens` tokens.
  // Does nothing unless the method is dtop_p, nor where `applied`, bool [], is false.
  void update(const at::Tensor& selected_L, int64_t tokens, const at::Tensor& applied);

  bool per_layer() const {
    return config_.method == RoutingMethod::kDTopP && config_.scope == ThresholdScope::kLayer;
  }
  // f64, one value, or one per layer: the state a checkpoint keeps. Never written in place.
  const at::Tensor& thresholds() const { return threshold_C_; }
  const at::Tensor& error_sums() const { return error_sum_C_; }
  // std::invalid_argument when the sizes are not those of this controller.
  void restore(const std::vector<double>& thresholds, const std::vector<double>& error_sums);

 private:
  RoutingConfig config_;
  at::Tensor num_experts_, target_C_;     // f64
  at::Tensor threshold_C_, error_sum_C_;  // f64; C controllers: one, or one a layer
};

}  // namespace dtopp
