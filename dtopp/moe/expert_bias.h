// Balances the load of the experts without a loss: one bias per expert and layer decides which experts tokens
// select. It has no part in their gates. With c the tokens per expert of a layer in a step,
// routing.bias_rule: sign moves the biases by a constant:
//
//   bias_e <- bias_e + routing.bias_rate * sign(mean(c) - c_e)
//
// quantile gives expert e the bias with which it would have had mean(c) tokens if the other biases stayed. A
// token selects e if its score plus bias_e exceeds the lowest sum that it selects without e, so this bias is
// a quantile of the differences, from a histogram over the tokens of the step (every stride-th of a sample,
// see moe/router.h):
//
//   bias_e <- the (mean(c) / tokens)-quantile of (lowest sum - score_e), minus the mean over experts
//
// Source:        sign: Wang et al., Auxiliary-Loss-Free Load Balancing (arXiv 2408.15664)
//                quantile: Kimi K3's report, which takes the (K + 1)-th largest sum of a token for all
//                experts
#pragma once

#include "dtopp/moe/router.h"

namespace dtopp::moe {

class ExpertBias {
 public:
  static constexpr int64_t kBins = 1024;  // of an expert's histogram; values in a bin are interpolated

  // Throws InvalidValue if routing.bias_rate is not positive.
  ExpertBias(const config::RunConfig& config, const at::Device& device);

  // The biases of a layer minus their mean, which changes no selection. f32 [E].
  Tensor of_layer(int64_t layer) const { return centered_LE_[layer]; }
  const Tensor& bias_LE() const { return bias_LE_; }  // f64

  // The number of a layer's statistics that update() needs: 0 with sign.
  int64_t statistics_size() const { return by_quantile_ ? centered_LE_.size(1) * kBins : 0; }
  // The rows of the S tokens that are in the statistics.
  Tensor sampled(const Tensor& of_TE) const { return of_TE.slice(0, 0, std::nullopt, stride_); }
  // The statistics of a layer and micro-batch with quantile, int64 [statistics_size()].
  //
  // Shapes:      score_SE f32, to which the bias is added; selected_SE bool
  Tensor statistics(int64_t layer, const Tensor& score_SE, const Tensor& selected_SE) const;

  // Moves the biases after an optimizer step. statistics_LS: whole numbers [L, statistics_size()]. Changes
  // nothing if `applied`, bool [], is false.
  void update(const StepCounts& counts, const Tensor& statistics_LS, const Tensor& applied);
  // Moves the biases by rate * error, for a router with another rule. As update() if `applied` is false.
  void add(const Tensor& error_LE, const Tensor& applied);

  // Appends the tensor that a run needs to resume. Call loaded() after it was replaced.
  void list_state(ops::StateTensors& list) { list.emplace_back("bias_LE", &bias_LE_); }
  void loaded();
  // bias_spread per layer: the largest minus the smallest bias.
  ops::NamedTensors metrics() const;

 private:
  Tensor quantile_LE(const StepCounts& counts, const Tensor& statistics_LS) const;

  double rate_;
  bool by_quantile_;
  double most_;         // a histogram covers biases from -most_ to most_
  int64_t stride_;      // of the tokens of the histogram
  Tensor bias_LE_;      // f64
  Tensor centered_LE_;  // f32
};

// The biases minus their mean per layer, f32 [L, E], of a router whose state has biases; else undefined.
Tensor centered_bias_of(const Router* router);

}  // namespace dtopp::moe
