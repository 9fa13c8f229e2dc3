// The queries or keys of attention from their projection: layer norm over the hidden size, then rotary
// position embedding of each head (rotate-half). One pass in fp32 and bf16, torch's operations in
// double.
#pragma once

#include "dtopp/ops/torch.h"

namespace dtopp {

// x_TD, gain_D of one type; cos_TK, sin_TK f32, K = D / num_heads, even: of position * base^(-2i / K), both
// halves alike. Returns [T, num_heads, K] in x's type: n = (x - mean) / sqrt(var + eps) * gain, and of each
// head (n_1, n_2) -> (n_1 cos - n_2 sin, n_2 cos + n_1 sin), computed in fp32. Differentiable in x and gain.
at::Tensor norm_rotary(const at::Tensor& x_TD, const at::Tensor& gain_D, const at::Tensor& cos_TK,
                       const at::Tensor& sin_TK, int64_t num_heads, double eps);

}  // namespace dtopp
