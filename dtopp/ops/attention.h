// Self-attention: libtorch's kernels. Where that is faster on a CPU, bf16 is computed in fp32: several times
// so without instructions that multiply bf16, up to three times with AVX512_BF16 and short sequences.
#pragma once

#include "dtopp/ops/torch.h"

namespace dtopp {

// Softmax attention, scale 1 / sqrt(K), of each token to all, or with `causal` to itself and those before it.
// q, k, v [B, H, L, K]; the result likewise. Differentiable.
at::Tensor self_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal);

}  // namespace dtopp
