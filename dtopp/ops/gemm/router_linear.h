// The router's logits, z = W x, in the weight's dtype.
//
// Source:        paper, section "Background"
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// Computes logits [T, E]. Differentiable in both arguments; the gradient of x has x's dtype. Autograd saves
// only the inputs.
//
// On a CUDA device, a bf16 x with an fp32 weight uses router_linear_in_parts. Its matrix units are about ten
// times as fast in bf16 as in fp32.
//
// Shapes:        x_TD [T, D] and weight_ED [E, D] of one floating dtype, or x bf16 and the weight f32
// Returns:       [T, E] of the weight's dtype, exact up to its rounding
// Throws:        c10::Error "router_linear: …" if the shapes or dtypes do not fit
at::Tensor router_linear(const at::Tensor& x_TD, const at::Tensor& weight_ED);

// Computes the same on any device, for a bf16 x and an fp32 weight, with bf16 matrix products.
//
// It splits the weight into the sum of three bf16 numbers (8 + 8 + 8 bits are fp32's 24). Every product is
// then exact, and sums are formed in fp32. The weight's gradient uses three parts of the logits' gradient in
// the same way. The gradient of x is rounded to bf16, so the upper two parts of both factors suffice.
at::Tensor router_linear_in_parts(const at::Tensor& x_TD, const at::Tensor& weight_ED);

}  // namespace dtopp::ops
