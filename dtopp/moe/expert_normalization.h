// Normalizes the router's logits of each expert over tokens (routing.expert_normalization: running):
//
//   z_e = w_e (x - m) / s_e
//
// m is a running mean of the router's inputs x, and s_e² a running mean of the square of w_e (x - m). Without
// them, the logits soon contain little but a constant per expert, because hidden states get a large common
// direction in the first steps, and nearly all tokens select the same experts. The normalization over a
// token's experts (routing.normalization) cannot remove what all tokens have in common.
// common_logit_share() measures it.
//
// The means are those of earlier steps, so that a token's logits do not depend on other tokens. They are over
// the last step at first, and later over about the last hundredth of the steps so far. After the n-th step,
// with the means M of that step:
//
//   m <- (m n' + M) / (n' + 1)        n' = (n - 1) / 100
//
// The gradient treats m and s as constants. m is subtracted from x and not W m from W x of the step before:
// one optimizer step changes W m by as much as the logits of tokens differ.
#pragma once

#include "dtopp/config/run_config.h"
#include "dtopp/ops/core/named_tensors.h"

namespace dtopp::moe {

// The sums over the tokens of a step that describe a layer's router logits z and the router's inputs x.
//
// They are whole numbers, so that a step's sums do not depend on how it is divided into micro-batches and
// ranks. One row per layer, in units of kLogitSumUnit, over every stride-th token of a sample
// (moe/router.h):
//
//   [C]   sum of c        c = z minus the token's mean over its C = E + Z logits
//   [1]   sum of |c|²
//   [C]   sum of z²       only with routing.expert_normalization: running
//   [D]   sum of x        likewise
constexpr double kLogitSumUnit = 1.0 / (1 << 20);

// The number of sums of a layer; 0 if the method has no logits.
int64_t logit_sums_size(const config::RunConfig& config);

// The sums of a layer and micro-batch, int64. Not differentiable. NaN counts as 0.
//
// Shapes:        logits_TC f32 [T, C]; x_TD [T, D], undefined without expert normalization -> [C + 1] or
//                [2 C + 1 + D]
Tensor logit_sums(const Tensor& logits_TC, const Tensor& x_TD, int64_t stride);

// |mean of c|² / mean of |c|²: the share of the logits' variance that all tokens have in common. Near 1, all
// tokens select the same experts. f64 [L], from sums f64 [L, C + 1 or more] over `tokens` tokens; 0 if all
// logits are 0.
Tensor common_logit_share(const Tensor& sums_LS, int64_t num_logits, int64_t tokens);

class ExpertNormalization {
 public:
  ExpertNormalization(const config::RunConfig& config, const at::Device& device);

  // The weight w_e / s_e and the offset w_e m / s_e that give z = weight x - offset, for the router's W.
  // Differentiable.
  struct Folded {
    Tensor weight_CD, offset_C;
  };
  Folded fold(int64_t layer, const Tensor& weight_CD) const;

  // Updates m and s after an optimizer step, from its logit_sums, f64 [L, 2 C + 1 + D], over `tokens` tokens.
  // Changes nothing if `applied`, bool [], is false.
  void update(const Tensor& sums_LS, int64_t tokens, const Tensor& applied);

  // Appends the tensors that a run needs to resume. Call loaded() after they were replaced.
  void list_state(ops::StateTensors& list);
  void loaded();

 private:
  Tensor mean_LD_, square_LC_;         // m and s², f64
  Tensor steps_;                       // n, int64 []
  Tensor mean32_LD_, inverse_std_LC_;  // f32
};

}  // namespace dtopp::moe
