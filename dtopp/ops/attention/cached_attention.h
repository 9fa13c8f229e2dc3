// Attention of one token per sequence to the cached keys and values of its sequence, for generation on a CPU.
#pragma once

#include <span>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

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
