// The router's choice: from each token's logits over the experts to the gates of those it is sent to (paper,
// Eqs. 2-4 and 6). For one token, z its E logits:
//
//   s = z                            normalization none
//   s = (z - mean) / sigma                         fixed
//   s = theta (z - mean) / sigma                   dynamic; theta is learned
//   P = softmax(s)
//   S = the chosen experts, the likeliest first; of two equally likely ones the lower index
//   gate_e = P_e / sum of P over S   for e in S, else 0; without renormalize: P_e
//
// mean and sigma are over the token's logits, sigma = sqrt(variance + 1e-6), the variance with divisor E.
// Top-k (top_k > 0): S is the top_k likeliest experts. Top-p (top_k 0): experts join S until their P add up
// to the threshold; the likeliest always does. max_experts > 0 limits S to as many. The gradient takes S as
// given.
#pragma once

#include <cstdint>
#include <string_view>

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// Added to the variance of a token's logits.
constexpr double kVarianceEpsilon = 1e-6;

// "f32" below is f64 for f64 logits. Means are over tokens, 0 where there are none.
struct RouteOutput {
  at::Tensor gates_TE;          // f32
  at::Tensor expert_counts_E;   // int64: tokens that chose each expert
  at::Tensor active_histogram;  // int64 [E + 1]: tokens that chose n experts
  at::Tensor mean_prob_E;       // f32: mean of P, the Q of the load-balance loss
  at::Tensor entropy;           // f32 []: mean of -sum P log P
  at::Tensor router_z;          // f32 []: mean of logsumexp(z)^2, of the raw logits
  // Not of the op: int64 [kMassBins] (mass_histogram.h) where who routes asks for it, else undefined.
  at::Tensor masses_M{};
};

// logits_TE: f32, bf16 or f64 [T, E]. scale: theta, f32 [], used when dynamic. threshold: f64 [], used when
// top_k is 0. All on one device; a CUDA device takes at most 2,048 experts (cuda_limits.h), and the host does
// not wait for it. Differentiable: gates, mean_prob, entropy, router_z in logits and scale.
//
// Throws c10::Error beginning "route:" for shapes, types, devices or values that do not fit, on a CPU also
// for a threshold that is NaN (a CUDA device then chooses one expert). Logits that are not finite are no
// error: the token's gates are NaN, those of the first experts by index.
RouteOutput route(const at::Tensor& logits_TE, const at::Tensor& scale, const at::Tensor& threshold,
                  std::string_view normalization, int64_t top_k, int64_t max_experts, bool renormalize);

}  // namespace dtopp
