// Attention of one token per sequence to the cached keys and values of its sequence, for generation on a CPU.
#pragma once

#include <span>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

struct CachedSequence {
  int64_t row;              // of the sequence's token in q and y
  at::Tensor k_LGK, v_LGK;  // G a divisor of H; the last dimension is contiguous
};

// y[row] = softmax(q[row] k^T / sqrt(K)) v for each sequence. The scores and sums are fp32. A row does not
// depend on the other sequences.
//
// Shapes:        q_THK and y_THK [T, H, K], contiguous, f32 or bf16 as all keys and values
void cached_attention(const at::Tensor& q_THK, std::span<const CachedSequence> sequences,
                      const at::Tensor& y_THK);

}  // namespace dtopp::ops
