// Linear layers, y = x W^T, and the bf16 abilities of a device.
//
// On CPUs without bf16 instructions, bf16 layers use kernels of their own. They form products in fp32
// and round once, which is several times faster than libtorch's emulation and no less exact. In fp32 every
// CPU uses these kernels: a whole step takes 5 % longer with libtorch's, and a row of y does not depend on
// the other rows of x. All other cases use libtorch's kernels.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// Matrix products of a linear layer on the CPU, on packed tiles (matrix_tiles.h).
//
// Preconditions: operands are float, double or bf16, contiguous and of one type
// Returns:       the operands' type; sums are formed in float (double for double)

// Returns true if these kernels multiply x: fp32 on any CPU, and bf16 if the CPU has no bf16 instructions.
bool multiplies_on_tiles(const Tensor& x);

// y_TN = x_TD W_ND^T in `type`: the operands', or fp32 for bf16.
Tensor multiply_transposed_cpu(const Tensor& x_TD, const Tensor& weight_ND, at::ScalarType type);

// dx_TD = dy_TN W_ND
Tensor multiply_cpu(const Tensor& grad_y_TN, const Tensor& weight_ND);

// dW_ND = dy_TN^T x_TD
Tensor multiply_left_transposed_cpu(const Tensor& grad_y_TN, const Tensor& x_TD);

// Returns true if the device multiplies bf16 in hardware: AMX, AVX512_BF16 or any supported CUDA device.
bool has_bf16_matmul(const at::Device& device);

// Returns true if the CPU has AMX, tile registers that multiply bf16, and libtorch can use them.
bool has_amx();

// Computes y = x W^T. Differentiable in both arguments.
//
// Shapes:        x [..., D], weight [N, D] of one floating dtype
// Returns:       [..., N] of x's dtype
// Throws:        c10::Error "linear: …" if the shapes or dtypes do not fit
Tensor linear(const Tensor& x, const Tensor& weight);

// The same for generation, without gradients. Few rows of bf16 read the weight once, without packing it.
//
// On a CPU without AMX, a row of y does not depend on the other rows.
//
// Shapes:        x [T, D], each weight [N, D], of one floating dtype
// Returns:       [T, N] per weight, of `type`: x's dtype, or fp32 for bf16
std::vector<Tensor> linear_by_row(const Tensor& x_TD, at::TensorList weights, at::ScalarType type);
inline Tensor linear_by_row(const Tensor& x_TD, const Tensor& weight_ND) {
  return linear_by_row(x_TD, at::TensorList(weight_ND), x_TD.scalar_type())[0];
}

// Computes the router's logits, z = W x, in the weight's dtype (paper, section "Background"). Differentiable
// in both arguments; the gradient of x has x's dtype. Autograd saves only the inputs.
//
// On a CUDA device, a bf16 x with an fp32 weight uses router_linear_in_parts. Its matrix units are about ten
// times as fast in bf16 as in fp32.
//
// Shapes:        x_TD [T, D] and weight_ED [E, D] of one floating dtype, or x bf16 and the weight f32
// Returns:       [T, E] of the weight's dtype, exact up to its rounding
// Throws:        c10::Error "router_linear: …" if the shapes or dtypes do not fit
Tensor router_linear(const Tensor& x_TD, const Tensor& weight_ED);

// Computes the same on any device, for a bf16 x and an fp32 weight, with bf16 matrix products.
//
// It splits the weight into the sum of three bf16 numbers (8 + 8 + 8 bits are fp32's 24). Every product is
// then exact, and sums are formed in fp32. The weight's gradient uses three parts of the logits' gradient in
// the same way. The gradient of x is rounded to bf16, so the upper two parts of both factors suffice.
Tensor router_linear_in_parts(const Tensor& x_TD, const Tensor& weight_ED);

}  // namespace dtopp::ops
