// The norms and residual connections of a transformer's stream: LayerNorm and RMSNorm with a gain, and the
// adaptive LayerNorm of diffusion transformers (adaLN) with a shift, a scale and a gate per sample.
//
// In f32 and bf16 on a CPU, dtopp's kernels read and write each number once. A row's result does not depend
// on the other rows. libtorch's operations, which need several passes, compute all other cases.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// A norm and its input. A residual connection that continues with this `x` adds its gradient within the
// norm's backward pass, which saves a pass over memory.
struct Normed {
  Tensor y, x;
};

// norm(x) * gain along the last dimension: LayerNorm if `centered`, else RMSNorm. Differentiable in all
// tensors. It saves x and gain.
//
// Shapes:        x [..., D]; gain [D], both of one floating dtype -> y, x [..., D]
// Throws:        c10::Error "norm: …" if the shapes or dtypes do not fit
Normed norm(const Tensor& x, const Tensor& gain_D, double eps, bool centered);

// norm(x) * (1 + scale) + shift, where norm is LayerNorm along D without a gain. Differentiable in all
// tensors. It saves x and scale.
//
// Shapes:        x [B, S, D]; shift, scale [B, 1, D], all of one floating dtype -> y, x [B, S, D]
// Throws:        c10::Error "modulated_norm: …" if the shapes or dtypes do not fit
Normed modulated_norm(const Tensor& x_BSD, const Tensor& shift_B1D, const Tensor& scale_B1D, double eps);

// x + gate * branch. Differentiable in all tensors. It saves gate and branch.
//
// Shapes:        x, branch [B, S, D]; gate [B, 1, D], all of one floating dtype
// Returns:       [B, S, D]
// Throws:        c10::Error "add_gated: …" if the shapes or dtypes do not fit
Tensor add_gated(const Tensor& x_BSD, const Tensor& gate_B1D, const Tensor& branch_BSD);

}  // namespace dtopp::ops
