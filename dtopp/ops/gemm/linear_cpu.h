// Matrix products of the CPU on packed tiles (matrix_tiles.h): those of a linear layer. Operands are float,
// double or bfloat16, contiguous and of one type, as is the result; sums are formed in float (double).
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// Whether our own kernels multiply x: on a CPU in fp32, and in bf16 where the CPU cannot multiply that
// itself.
bool multiplies_on_tiles(const at::Tensor& x);

// y_TN = x_TD W_ND^T
at::Tensor multiply_transposed_cpu(const at::Tensor& x_TD, const at::Tensor& weight_ND);

// dx_TD = dy_TN W_ND
at::Tensor multiply_cpu(const at::Tensor& grad_y_TN, const at::Tensor& weight_ND);

// dW_ND = dy_TN^T x_TD
at::Tensor multiply_left_transposed_cpu(const at::Tensor& grad_y_TN, const at::Tensor& x_TD);

}  // namespace dtopp
