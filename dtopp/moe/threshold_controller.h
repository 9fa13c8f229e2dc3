// Holds the average number of active experts at its target T. After each optimiser step, with a the mean
// number of experts a token chose (over every micro-batch, rank and, for scope global, layer) and
// e = (T - a) / E:
//
// routing.controller: pi is the paper's law (Eqs. 4, 5, 8, 9 and Algorithm 1),
//
//   sum_e += e        p <- p_0 + K_p e + K_i sum_e,  clipped to [1e-6, 1 - 1e-6]
//
// Anti-windup: where that p lies beyond a bound and e pushes outwards, e is left out of sum_e and p is the
// bound. A gain that is `auto` is kAutoKp or kAutoKi over the loop's own gain g = (da/dp) / E, where da/dp is
// the rise of the step's curve a(p) (mass_curve.h) from p to T and at least from 0.95 T to 1.05 T; with K_i
// `auto`, sum_e stands for the sum of K_i e.
//
// routing.controller: solve takes p from that curve: where it reaches T plus half of what was missing so far,
//
//   sum_e += e, but for the step of p_0        a(p) = T + E sum_e / 2
//
// so that the mean over any stretch of steps is off T by no more than what sum_e changed in it. sum_e stays
// within half of T / E, and a tenth of T at most is made up for in a step.
//
// Its state lies on the device that counts the experts, in doubles, so that a step does not wait for it; the
// same operations in the same order give the same bits everywhere.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dtopp/config/routing_config.h"
#include "dtopp/moe/mass_curve.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp {

inline constexpr double kAutoKp = 0.1, kAutoKi = 0.3;

// What an optimiser step counted.
struct RoutedStep {
  at::Tensor selected_L;    // token-expert pairs of each layer, whole numbers of any type
  int64_t tokens = 0;       // each layer's
  at::Tensor masses_CM{};   // of each controller, whole numbers (mass_histogram.h); may be undefined where
                            // the controller is pi and its gains are numbers
  int64_t mass_stride = 1;  // of the tokens counted there
};

class ThresholdController {
 public:
  // num_layers: those with a router; 0 for a dense model, whose targets are not looked at.
  ThresholdController(const RoutingConfig& config, int64_t num_experts, int64_t num_layers,
                      const at::Device& device = at::kCPU);

  // p of a layer for the coming step, f64 []. Constant unless the method is dtop_p; unused by top_k.
  at::Tensor threshold(int64_t layer) const { return threshold_C_[per_layer() ? layer : 0]; }

  // One optimiser step has passed. Does nothing unless the method is dtop_p, nor where `applied`, bool [], is
  // false.
  void update(const RoutedStep& step, const at::Tensor& applied);

  bool per_layer() const {
    return config_.method == RoutingMethod::kDTopP && config_.scope == ThresholdScope::kLayer;
  }
  // f64, one value, or one per layer: the state a checkpoint keeps. Never written in place.
  const at::Tensor& thresholds() const { return threshold_C_; }
  const at::Tensor& error_sums() const { return error_sum_C_; }
  // f64, likewise: p with which the last step's tokens would have met T; NaN before there was a step with
  // masses.
  const at::Tensor& solved() const { return solved_C_; }
  // std::invalid_argument when the sizes are not those of this controller.
  void restore(const std::vector<double>& thresholds, const std::vector<double>& error_sums);

 private:
  // p of the next step, sum_e after this one.
  struct Next {
    at::Tensor threshold_C, error_sum_C;
  };
  // gain_C: the loop's own, where a gain is auto.
  Next paper_law(const at::Tensor& error_C, const at::Tensor& gain_C) const;
  // threshold: p at which the step's tokens would have had so many experts.
  Next solve(const at::Tensor& error_C,
             const std::function<at::Tensor(const at::Tensor& experts_C)>& threshold) const;

  RoutingConfig config_;
  at::Tensor num_experts_, target_C_;                // f64
  at::Tensor edges_;                                 // of masses' bins; undefined unless the method is dtop_p
  at::Tensor threshold_C_, error_sum_C_, solved_C_;  // f64; C controllers: one, or one a layer
};

}  // namespace dtopp
