// Sums over the tokens of a step that describe a layer's router logits z and the router's inputs x.
//
// They are whole numbers, so that a step's sums do not depend on how it is divided into micro-batches and
// ranks. One row per layer, in units of kLogitSumUnit, over every stride-th token of a sample
// (moe/token_sampling.h):
//
//   [C]   sum of c        c = z minus the token's mean over its C = E + Z logits
//   [1]   sum of |c|²
//   [C]   sum of z²       only with routing.expert_normalization: running
//   [D]   sum of x        likewise
#pragma once

#include <cstdint>

#include "dtopp/config/run_config.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp::moe {

constexpr double kLogitSumUnit = 1.0 / (1 << 20);

// The number of sums of a layer; 0 if the method has no logits.
int64_t logit_sums_size(const config::RunConfig& config);

// The sums of a layer and micro-batch, int64. Not differentiable. NaN counts as 0.
//
// Shapes:        logits_TC f32 [T, C]; x_TD [T, D], undefined without expert normalization -> [C + 1] or
//                [2 C + 1 + D]
at::Tensor logit_sums(const at::Tensor& logits_TC, const at::Tensor& x_TD, int64_t stride);

// |mean of c|² / mean of |c|²: the share of the logits' variance that all tokens have in common. Near 1, all
// tokens select the same experts. f64 [L], from sums f64 [L, C + 1 or more] over `tokens` tokens; 0 if all
// logits are 0.
at::Tensor common_logit_share(const at::Tensor& sums_LS, int64_t num_logits, int64_t tokens);

}  // namespace dtopp::moe
