// Implements the parts of self-attention that training and inference share: projections, QK-norm, rotary
// positions.
#pragma once

#include "dtopp/config/language_model_config.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp {

struct AttentionWeights {
  at::Tensor q_DD, k_DD, v_DD, o_DD;
  at::Tensor q_norm_D, k_norm_D;
};

// LayerNorm without bias, or RMSNorm, over the last dimension, with eps 1e-5.
at::Tensor norm(const at::Tensor& x, const at::Tensor& gain_D, NormType type);

// cos and sin of position * 10000^(-2 i / K), f32. The two halves of K are equal.
struct RotaryTable {
  at::Tensor cos_TK, sin_TK;
};
// positions_T: int64.
RotaryTable rotary_table(const at::Tensor& positions_T, int64_t head_size);

struct QueryKeyValue {
  at::Tensor q_THK, k_THK, v_THK;
};

// Projects x to queries, keys and values. q and k are normalized over all heads together; then rotary
// positions are applied.
QueryKeyValue project_qkv(const at::Tensor& x_TD, const AttentionWeights& weights, int64_t num_heads,
                          const RotaryTable& rotary, NormType norm);

}  // namespace dtopp
