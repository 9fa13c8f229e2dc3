// Causal attention of the CPU on packed tiles (matrix_tiles.h), forward and backward.
#pragma once

#include "dtopp/ops/torch.h"

namespace dtopp {

// Heads wider than this are left to libtorch.
constexpr int64_t kWidestHead = 256;

struct AttentionOutput {
  at::Tensor y_BHLK;   // of q's type, laid out [B, L, H, K]
  at::Tensor lse_BHL;  // f32: log of the sum of exponentials of the scaled scores
};

// q, k, v [B, H, L, K], float or bfloat16, of any strides but K's, which is 1; K <= kWidestHead. Softmax and
// sums in fp32.
AttentionOutput causal_attention_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

struct AttentionGradients {
  at::Tensor q, k, v;  // [B, H, L, K], laid out [B, L, H, K]
};

AttentionGradients causal_attention_backward_cpu(const at::Tensor& grad_y, const at::Tensor& q,
                                                 const at::Tensor& k, const at::Tensor& v,
                                                 const AttentionOutput& output);

}  // namespace dtopp
