// Dense matrix products and attention in the compute precision. On a CPU without bf16 multiply instructions a
// bf16 product is computed by the fp32 kernels and rounded once, which is several times faster there than
// emulation and never less exact.
#pragma once

#include "dtopp/ops/torch.h"

namespace dtopp {

// True when the device multiplies bf16 in hardware (AMX or AVX512_BF16; every CUDA device we support).
bool has_bf16_matmul(const at::Device& device);

// y = x W^T. x [..., D], weight [N, D], same floating dtype; y [..., N] in it. Differentiable in both.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight);

// Causal softmax attention, scale 1 / sqrt(K). q, k, v [B, H, L, K]; the result likewise. Differentiable.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace dtopp
