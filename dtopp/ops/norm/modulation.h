// The modulation of a diffusion transformer's block (adaLN): a LayerNorm with a shift and a scale per sample,
// and a residual with a gate per sample.
//
// In f32 and bf16 on a CPU, dtopp's kernels read and write each number once. libtorch's operations, which
// need several passes, compute all other cases.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// norm(x) * (1 + scale) + shift, where norm is LayerNorm along D without a gain. Differentiable in all
// tensors. It saves x and scale.
//
// Shapes:        x [B, S, D]; shift, scale [B, 1, D], all of one floating dtype
// Returns:       [B, S, D]
// Throws:        c10::Error "modulated_norm: …" if the shapes or dtypes do not fit
at::Tensor modulated_norm(const at::Tensor& x_BSD, const at::Tensor& shift_B1D, const at::Tensor& scale_B1D,
                          double eps);

// x + gate * branch. Differentiable in all tensors. It saves gate and branch.
//
// Shapes:        x, branch [B, S, D]; gate [B, 1, D], all of one floating dtype
// Returns:       [B, S, D]
// Throws:        c10::Error "add_gated: …" if the shapes or dtypes do not fit
at::Tensor add_gated(const at::Tensor& x_BSD, const at::Tensor& gate_B1D, const at::Tensor& branch_BSD);

}  // namespace dtopp::ops
