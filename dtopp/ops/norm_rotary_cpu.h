// norm_rotary's CPU kernels: float or bfloat16, contiguous.
#pragma once

#include "dtopp/ops/torch.h"

namespace dtopp {

struct NormRotaryInputs {
  at::Tensor x_TD, gain_D, cos_TK, sin_TK;
  double eps;
};

at::Tensor norm_rotary_cpu(const NormRotaryInputs& in);

// d x_TD and d gain_D from grad_y [T, H, K].
std::pair<at::Tensor, at::Tensor> norm_rotary_backward_cpu(const at::Tensor& grad_y_THK,
                                                           const NormRotaryInputs& in);

}  // namespace dtopp
