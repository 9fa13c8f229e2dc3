// The controller of DTop-p and dtop_p_bias.
//
// Keeps the mean number of active experts per token at its target T.
//
// The controller runs after each optimizer step. Let a be the mean number of experts per token (over all
// micro-batches, ranks and, with scope global, layers), and e = (T - a) / E.
//
// routing.controller: pi is the paper's controller:
//
// sum_e += e        p <- p_0 + K_p e + K_i sum_e,  clipped to [1e-6, 1 - 1e-6]
//
// Anti-windup: if p is beyond a bound and e pushes it further, sum_e omits e and p is the bound.
//
// routing.controller: solve computes p from the step's curve a(p) (solving.h). It aims at T plus
// half of the accumulated error, with T of the coming step (routing.schedule):
//
// sum_e += e, except for the step of p_0        a(p) = T + E sum_e / 2
//
// The mean over any range of steps then differs from T only by the change of sum_e in that range. sum_e is
// limited to half of T / E. One step corrects at most a tenth of T.
//
// The state is in f64 on the device that counts the experts, so a step does not wait for it. The same
// operations in the same order give the same bits on every device.
//
// Source:        paper, Eqs. 5, 6, 8, 9 and Algorithm 1
#pragma once

#include "dtopp/config/routing_config.h"
#include "dtopp/moe/solving.h"
#include "dtopp/ops/core/named_tensors.h"

namespace dtopp::moe {

// The counts of an optimizer step.
struct RoutedStep {
  Tensor num_assignments_L;  // token-expert pairs per layer, whole numbers of any type
  int64_t tokens = 0;        // tokens per layer
  // Cumulative-probability histogram per controller, whole numbers (ops/route/route.h). It may be
  // undefined if the controller is pi.
  Tensor prob_histogram_CM{};
  int64_t histogram_stride = 1;  // the sampling stride of those counts
};

class ThresholdController {
 public:
  // The method is dtop_p or dtop_p_bias. num_layers: layers with a router.
  ThresholdController(const config::RoutingConfig& config, int64_t num_experts, int64_t num_layers,
                      const at::Device& device = at::kCPU);

  // p of a layer for the next step, f64 [].
  Tensor threshold(int64_t layer) const { return threshold_C_[per_layer() ? layer : 0]; }

  // Sets p before the first step, per controller. The law pi moves it from there: sum_e begins at
  // (p - p_0) / K_i, so that a step without error leaves p. Requires K_i > 0 with pi.
  void start_at(const std::vector<double>& thresholds);

  // Updates the state after one optimizer step. Does nothing if `applied` (bool []) is false.
  void update(const RoutedStep& step, const Tensor& applied);

  // The targets of the step that is updated next, and of the step after it: both in the form of
  // RoutingConfig::experts. The error is that of the first; solve aims at the second.
  void set_targets(const std::vector<double>& experts, const std::vector<double>& next_experts);

  bool per_layer() const { return config_.scope == config::ThresholdScope::kLayer; }
  // f64, one value or one per layer. Never modified in place.
  const Tensor& thresholds() const { return threshold_C_; }
  // f64, likewise: the p at which the last step's tokens would have met T; NaN before a step with cumulative
  // probabilities.
  const Tensor& solved() const { return solved_C_; }
  // Appends the tensors that a run needs to resume. "steps" is the number of applied updates.
  void list_state(ops::StateTensors& list) {
    list.emplace_back("threshold_C", &threshold_C_);
    list.emplace_back("error_sum_C", &error_sum_C_);
    list.emplace_back("steps", &steps_);
  }

 private:
  // p of the next step, and sum_e after this one.
  struct Next {
    Tensor threshold_C, error_sum_C;
  };
  Next paper_law(const Tensor& error_C) const;

  config::RoutingConfig config_;
  Tensor num_experts_, target_C_, next_target_C_;  // f64
  Tensor edges_;                                   // of the histogram's bins
  Tensor threshold_C_, error_sum_C_, solved_C_;    // f64, per controller: one, or one per layer
  Tensor steps_;                                   // int64 []
};

}  // namespace dtopp::moe
