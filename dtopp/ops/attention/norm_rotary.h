// Turns an attention projection into queries or keys: a norm over all heads together or over each, then a
// rotary position embedding of each head.
//
// The rotation pairs the first half of a head with the second half.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

//   n = (x - mean) / sqrt(variance + eps) * gain     over N numbers of a token; the variance has divisor N
//   n = x / sqrt(mean of x^2 + eps) * gain           if `centered` is false: an RMS norm
//   y = (n_1 cos - n_2 sin, n_2 cos + n_1 sin)       per head, n_1 its first half and n_2 its second
//
// cos_TK and sin_TK hold the cosine and sine of position * base^(-2i / K) for i < K / 2. The second half
// repeats them. Computed in fp32. Differentiable in x and gain.
//
// Shapes:        x_TD [T, D] and gain_N [N], both f32 or bf16, where N divides D and whole heads fill it: D
// for
//                all heads together, K for each; cos_TK, sin_TK [T, K] f32, where K is D / num_heads and even
// Returns:       [T, num_heads, K] of x's type
// Throws:        c10::Error "norm_rotary…" if the shapes, types or devices do not fit, or if N exceeds
//                kWidestNorm on a CUDA device (cuda_types.h)
Tensor norm_rotary(const Tensor& x_TD, const Tensor& gain_N, const Tensor& cos_TK, const Tensor& sin_TK,
                   int64_t num_heads, double eps, bool centered = true);

// Check the arguments of the CPU and CUDA kernels. `op` is the name that error messages begin with.
void check_norm_rotary(const char* op, const Tensor& x_TD, const Tensor& gain_N, const Tensor& cos_TK,
                       const Tensor& sin_TK);
void check_norm_rotary_backward(const Tensor& grad_y_THK, const Tensor& x_TD, const Tensor& gain_N,
                                const Tensor& cos_TK, const Tensor& sin_TK);

}  // namespace dtopp::ops
