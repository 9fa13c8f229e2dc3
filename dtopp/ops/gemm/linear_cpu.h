// Matrix products of a linear layer on the CPU, on packed tiles (matrix_tiles.h).
//
// Preconditions: operands are float, double or bf16, contiguous and of one type
// Returns:       the operands' type; sums are formed in float (double for double)
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// Returns true if these kernels multiply x: fp32 on any CPU, and bf16 if the CPU has no bf16 instructions.
bool multiplies_on_tiles(const at::Tensor& x);

// y_TN = x_TD W_ND^T in `type`: the operands', or fp32 for bf16.
at::Tensor multiply_transposed_cpu(const at::Tensor& x_TD, const at::Tensor& weight_ND, at::ScalarType type);

// dx_TD = dy_TN W_ND
at::Tensor multiply_cpu(const at::Tensor& grad_y_TN, const at::Tensor& weight_ND);

// dW_ND = dy_TN^T x_TD
at::Tensor multiply_left_transposed_cpu(const at::Tensor& grad_y_TN, const at::Tensor& x_TD);

}  // namespace dtopp::ops
