// Self-attention by libtorch's kernels.
//
// On CPUs bf16 is computed in fp32 if that is faster. Without bf16 instructions it is several times as fast,
// and with AVX512_BF16 and short sequences up to three times. On CUDA devices libtorch picks the kernel.
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
