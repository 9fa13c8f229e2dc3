// route: from router logits to gates (paper, Eqs. 2-4 and 6).
//
//   s = z | (z - mean) / sigma | theta (z - mean) / sigma       normalization none | fixed | dynamic
//   P = softmax(s);  S = the experts chosen;  gates = P / sum_S P on S, 0 elsewhere (P on S without
//   renormalize)
//
// mean and sigma are per token over experts, sigma = sqrt(biased variance + 1e-6). Experts are ordered by
// (P descending, index ascending). top_k > 0: S is the first top_k. top_k == 0: expert j is in S while the
// sum of the probabilities before it is < threshold, so at least one is. max_experts > 0 caps the set. S is a
// constant for the gradient.
#pragma once

#include <cstdint>
#include <string_view>

#include "dtopp/ops/torch.h"

namespace dtopp {

struct RouteOutput {
  at::Tensor gates_TE;          // f32; 0 where not chosen
  at::Tensor expert_counts_E;   // int64: tokens that chose each expert
  at::Tensor active_histogram;  // int64 [E + 1]: tokens that chose n experts
  at::Tensor mean_prob_E;       // f32: Q of the load-balance loss
  at::Tensor entropy;           // f32 []: mean over tokens of -sum P log P
  at::Tensor router_z;          // f32 []: mean over tokens of logsumexp(z)^2 of the raw logits
};

// logits_TE: f32, bf16 or f64 [T, E]; scale: f32 [] (used when dynamic); threshold: f64 [] on the logits'
// device (used when top_k is 0). Differentiable: gates, mean_prob, entropy, router_z into logits and scale.
// Throws c10::Error beginning "route:" for wrong shapes, dtypes, devices or values.
RouteOutput route(const at::Tensor& logits_TE, const at::Tensor& scale, const at::Tensor& threshold,
                  std::string_view normalization, int64_t top_k, int64_t max_experts, bool renormalize);

}  // namespace dtopp
