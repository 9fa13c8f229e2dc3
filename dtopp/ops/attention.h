// Self-attention: libtorch's kernels. On a CPU without instructions that multiply bf16 they compute it in
// fp32, which is several times faster there than emulating it.
#pragma once

#include "dtopp/ops/torch.h"

namespace dtopp {

// Softmax attention, scale 1 / sqrt(K), of each token to all, or with `causal` to itself and those before it.
// q, k, v [B, H, L, K]; the result likewise. Differentiable.
at::Tensor self_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal);

}  // namespace dtopp
