// Linear layers. On a CPU without instructions that multiply bf16, our own kernels (linear_cpu.h), which form
// bf16 products in fp32 and round once: several times faster than libtorch's emulation and no less exact. In
// fp32 our own on every CPU: a whole step takes 5 % longer with libtorch's (docs/performance.md). Elsewhere
// libtorch's.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// True when the device multiplies bf16 in hardware (AMX or AVX512_BF16; every CUDA device we support).
bool has_bf16_matmul(const at::Device& device);

// True when a CPU has tile registers that multiply bf16 (AMX), which libtorch can use.
bool has_amx();

// y = x W^T. x [..., D], weight [N, D], same floating dtype; y [..., N] in it. Differentiable in both.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight);

}  // namespace dtopp
