// Self-attention: in fp32 and bf16 on a CPU by attention_cpu.h, otherwise by libtorch's kernels.
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

}  // namespace dtopp::ops
