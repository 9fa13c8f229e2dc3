// Self-attention on a CPU, forward and backward, without autograd.
//
// fp32 and bf16 are multiplied on dtopp's tiles. libtorch computes heads of more than 256 numbers.
#pragma once

#include <array>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// The result of attention, and the logarithm of each token's sum of exponentials.
struct AttentionResult {
  at::Tensor y_BHLK, logsumexp_BHL;
};

// self_attention (attention.h). Results do not depend on the number of threads.
//
// Preconditions: q, k, v [B, H, L, K] of one shape, on a CPU, not empty
AttentionResult attention_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal);

// Returns the gradients of q, k and v.
std::array<at::Tensor, 3> attention_backward_cpu(const at::Tensor& grad_y, const at::Tensor& q,
                                                 const at::Tensor& k, const at::Tensor& v,
                                                 const AttentionResult& result, bool causal);

}  // namespace dtopp::ops
