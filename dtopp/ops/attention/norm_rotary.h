// The queries or keys of attention from their projection: a norm over the hidden size, then rotary position
// embedding of each head, its two halves being turned against each other. Own kernels in fp32 and bf16,
// torch's operations in f64.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp {

//   n = (x - mean) / sqrt(variance + eps) * gain     over a token's D numbers, the variance with divisor D
//   n = x / sqrt(mean of x^2 + eps) * gain           where it is not centred: an RMS norm
//   y = (n_1 cos - n_2 sin, n_2 cos + n_1 sin)       of each head, n_1 its first half and n_2 its second
//
// x_TD and gain_D of one type. cos_TK, sin_TK f32 (f64 for f64 x), K = D / num_heads, an even number: cosine
// and sine of position * base^(-2i / K) for i below K / 2, then once more for the second half. Returns [T,
// num_heads, K] in x's type, computed in fp32. Differentiable in x and gain. Throws c10::Error beginning
// "norm_rotary" for shapes, types or devices that do not fit.
at::Tensor norm_rotary(const at::Tensor& x_TD, const at::Tensor& gain_D, const at::Tensor& cos_TK,
                       const at::Tensor& sin_TK, int64_t num_heads, double eps, bool centred = true);

}  // namespace dtopp
