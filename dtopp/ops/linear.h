// Dense matrix products in the compute precision: on a CPU that computes in fp32 our own kernels
// (linear_cpu.h), libtorch's elsewhere. On a CPU without bf16 multiply instructions a bf16 product is formed
// in fp32 and rounded once, which is several times faster there than emulation and never less exact.
#pragma once

#include "dtopp/ops/torch.h"

namespace dtopp {

// True when the device multiplies bf16 in hardware (AMX or AVX512_BF16; every CUDA device we support).
bool has_bf16_matmul(const at::Device& device);

// y = x W^T. x [..., D], weight [N, D], same floating dtype; y [..., N] in it. Differentiable in both.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight);

}  // namespace dtopp
