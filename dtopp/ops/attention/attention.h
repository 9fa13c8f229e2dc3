// Self-attention: in fp32 and bf16 on a CPU by attention_tiles_cpu.h, otherwise by libtorch's kernels.
#pragma once

#include <span>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {
// Softmax attention with scale 1 / sqrt(K). Each token attends to all tokens, or with `causal` to itself and
// the tokens before it. Differentiable.
//
// Shapes:        q, k, v [B, H, L, K]
// Returns:       [B, H, L, K]
// Throws:        c10::Error "self_attention: …" if the shapes differ
at::Tensor self_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal);

// Self-attention within documents that are concatenated in one sequence. A CPU runs attention_tiles_cpu.h
// once per run of equally long documents, a CUDA device one of libtorch's kernels for all.

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

// Attention of one token per sequence to the cached keys and values of its sequence, for generation on a CPU.

struct CachedSequence {
  int64_t row;              // of the sequence's token in q, k, v and y
  at::Tensor k_GLK, v_GLK;  // the cache, contiguous; its capacity includes the token
  int64_t first, position;  // the token attends to [first, position]; `position` is its own
};

// Writes k[row] and v[row] to the cache of each sequence. Then y[row] = softmax(q[row] k^T / sqrt(K)) v over
// its keys and values. The scores and sums are fp32. A row does not depend on the other sequences.
//
// Shapes:        q_THK and y_THK [T, H, K], k_TGK and v_TGK [T, G, K], G a divisor of H; all contiguous, f32
//                or bf16
void cached_attention(const at::Tensor& q_THK, const at::Tensor& k_TGK, const at::Tensor& v_TGK,
                      std::span<const CachedSequence> sequences, const at::Tensor& y_THK);

}  // namespace dtopp::ops
