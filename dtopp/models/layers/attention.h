// The parts of self-attention that training and inference share: projections, QK-norm and rotary positions.
#pragma once

#include "dtopp/config/language_model_config.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp {

struct AttentionWeights {
  at::Tensor q_DD, k_DD, v_DD, o_DD;
  at::Tensor q_norm_D, k_norm_D;
};

// LayerNorm without bias or RMSNorm, over the last dimension, eps 1e-5.
at::Tensor norm(const at::Tensor& x, const at::Tensor& gain_D, NormType type);

// cos and sin of position * 10000^(-2 i / K), f32, the two halves of K equal.
struct RotaryTable {
  at::Tensor cos_TK, sin_TK;
};
// positions_T int64.
RotaryTable rotary_table(const at::Tensor& positions_T, int64_t head_size);

struct Heads {
  at::Tensor q_THK, k_THK, v_THK;
};

// q and k normalised over all heads together, then turned to their positions.
Heads project_heads(const at::Tensor& x_TD, const AttentionWeights& weights, int64_t num_heads,
                    const RotaryTable& rotary, NormType norm);

}  // namespace dtopp
