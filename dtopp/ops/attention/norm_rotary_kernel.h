// Argument checks that norm_rotary's CPU and CUDA kernels share.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// `op` is the name that error messages begin with.
void check_norm_rotary(const char* op, const at::Tensor& x_TD, const at::Tensor& gain_D,
                       const at::Tensor& cos_TK, const at::Tensor& sin_TK);

// Checks the arguments of norm_rotary_backward.
void check_norm_rotary_backward(const at::Tensor& grad_y_THK, const at::Tensor& x_TD,
                                const at::Tensor& gain_D, const at::Tensor& cos_TK, const at::Tensor& sin_TK);

}  // namespace dtopp
