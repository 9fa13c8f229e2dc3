// Causal attention: our own kernel (attention_cpu.h) where linear.h uses its own, libtorch's elsewhere.
#pragma once

#include "dtopp/ops/torch.h"

namespace dtopp {

// Causal softmax attention, scale 1 / sqrt(K). q, k, v [B, H, L, K]; the result likewise. Differentiable.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace dtopp
