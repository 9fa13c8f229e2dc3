// Counts the cumulative probabilities c_j before each token's j-th likeliest expert, j >= 2, over tokens. The
// histogram gives the number of active experts at any threshold.
//
// A threshold p selects the j-th likeliest expert exactly if c_j < p (route.h). The mean number of active
// experts per token at p is therefore
//
//   a(p) = 1 + (number of c_j < p) / tokens
//
// With zero experts, which are the last columns, only the others count, and so does a token's likeliest
// expert (c_1 = 0): a(p) = (number of c_j < p) / tokens.
//
// Example: one token with P = 0.5, 0.3, 0.2 has c_2 = 0.5 and c_3 = 0.8. At p = 0.7 only c_2 < p, so a = 2.
#pragma once

#include <cstdint>
#include <string_view>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// Counts every `stride`-th token from the first on, and at most max_experts experts per token (0: all). It
// skips tokens whose logits are not finite: they have one expert. Not differentiable.
//
// Shapes:        logits_TE, scale and normalization as in route
// Returns:       int64 [kCumulativeProbBins] (cumulative_prob_bins.h)
// Throws:        c10::Error "cumulative_prob_histogram: …" in the same cases as route
at::Tensor cumulative_prob_histogram(const at::Tensor& logits_TE, const at::Tensor& scale,
                                     std::string_view normalization, int64_t max_experts, int64_t stride,
                                     int64_t zero_experts = 0);

}  // namespace dtopp::ops
