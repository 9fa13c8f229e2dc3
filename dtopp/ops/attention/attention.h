// Self-attention: in fp32 and bf16 on a CPU by attention_tiles_cpu.h, otherwise by libtorch's kernels.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {
// Softmax attention with scale 1 / sqrt(K). Each token attends to all tokens, or with `causal` to itself and
// the tokens before it. Differentiable.
//
// Shapes:        q, k, v [B, H, L, K]
// Returns:       [B, H, L, K]
// Throws:        c10::Error "self_attention: …" if the shapes differ
at::Tensor self_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal);

// Self-attention within documents that are concatenated in one sequence. A CPU runs attention_tiles_cpu.h once per
// run of equally long documents, a CUDA device one of libtorch's kernels for all.

// Causal self-attention (attention.h): each token attends to itself and the earlier tokens of its own
// document. Differentiable.
//
// Shapes:        q, k, v [T, H, K]; offsets int32 [n + 1] on their device: the start of each of n documents,
//                then T
// Returns:       [T, H, K]
// Throws:        c10::Error "document_attention: …" if the shapes do not fit; on a CPU also for wrong offsets
// Preconditions: no document has more than `longest` tokens; on a CUDA device the offsets are not checked
at::Tensor document_attention(const at::Tensor& q_THK, const at::Tensor& k_THK, const at::Tensor& v_THK,
                              const at::Tensor& offsets, int64_t longest);

}  // namespace dtopp::ops
