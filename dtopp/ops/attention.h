// Causal attention: libtorch's kernels. On a CPU without instructions that multiply bf16 they compute it in
// fp32, which is several times faster there than emulating it.
#pragma once

#include "dtopp/ops/torch.h"

namespace dtopp {

// Causal softmax attention, scale 1 / sqrt(K). q, k, v [B, H, L, K]; the result likewise. Differentiable.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace dtopp
