// Self-attention: in fp32 and bf16 on a CPU by attention_tiles_cpu.cpp, otherwise by libtorch's kernels.
#pragma once

#include <array>
#include <span>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// Softmax attention with scale 1 / sqrt(K). Each token attends to all tokens, or with `causal` to itself and
// the tokens before it. Differentiable.
//
// Shapes:        q, k, v [B, H, L, K]
// Returns:       [B, H, L, K]
// Throws:        c10::Error "self_attention: …" if the shapes differ
Tensor self_attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal);

// Causal self-attention within documents that are concatenated in one sequence: each token attends to itself
// and the earlier tokens of its own document. A CPU runs attention_tiles_cpu.cpp once per run of equally long
// documents, a CUDA device one of libtorch's kernels for all. Differentiable.
//
// Shapes:        q, k, v [T, H, K]; offsets int32 [n + 1] on their device: the start of each of n documents,
//                then T
// Returns:       [T, H, K]
// Throws:        c10::Error "document_attention: …" if the shapes do not fit; on a CPU also for wrong offsets
// Preconditions: no document has more than `longest` tokens; on a CUDA device the offsets are not checked
Tensor document_attention(const Tensor& q_THK, const Tensor& k_THK, const Tensor& v_THK,
                          const Tensor& offsets, int64_t longest);

struct CachedSequence {
  int64_t row;              // of the sequence's token in q, k, v and y
  Tensor k_GLK, v_GLK;      // the cache, contiguous; its capacity includes the token
  int64_t first, position;  // the token attends to [first, position]; `position` is its own
};

// Attention of one token per sequence to the cached keys and values of its sequence, for generation on a CPU.
//
// Writes k[row] and v[row] to the cache of each sequence. Then y[row] = softmax(q[row] k^T / sqrt(K)) v over
// its keys and values. The scores and sums are fp32. A row does not depend on the other sequences.
//
// Shapes:        q_THK and y_THK [T, H, K], k_TGK and v_TGK [T, G, K], G a divisor of H; all contiguous, f32
//                or bf16
void cached_attention(const Tensor& q_THK, const Tensor& k_TGK, const Tensor& v_TGK,
                      std::span<const CachedSequence> sequences, const Tensor& y_THK);

// Self-attention on a CPU, forward and backward, without autograd. fp32 and bf16 are multiplied on dtopp's
// tiles. libtorch computes heads of more than 256 numbers.

// The result of attention, and the logarithm of each token's sum of exponentials.
struct AttentionResult {
  Tensor y_BHLK, logsumexp_BHL;
};

// self_attention. Results do not depend on the number of threads.
//
// Preconditions: q, k, v [B, H, L, K] of one shape, on a CPU, not empty
AttentionResult attention_cpu(const Tensor& q, const Tensor& k, const Tensor& v, bool causal);

// Returns the gradients of q, k and v.
std::array<Tensor, 3> attention_backward_cpu(const Tensor& grad_y, const Tensor& q, const Tensor& k,
                                             const Tensor& v, const AttentionResult& result, bool causal);

}  // namespace dtopp::ops
