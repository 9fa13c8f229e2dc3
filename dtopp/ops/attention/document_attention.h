// Self-attention within documents that are concatenated in one sequence. A CPU runs attention_cpu.h once per
// run of equally long documents, a CUDA device one of libtorch's kernels for all.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

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
