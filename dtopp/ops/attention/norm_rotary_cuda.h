// norm_rotary's CUDA kernels, as plain functions of device pointers. norm_rotary.h has the equations.
#pragma once

#include "dtopp/ops/cuda/cuda_types.h"

namespace dtopp::ops::cuda {

// Scalar: float or Bfloat16.
template <typename Scalar>
struct NormRotary {
  const Scalar *x_TD, *gain_N;
  const float *cos_TK, *sin_TK;
  int64_t rows, hidden, width;  // T D / N, N, K
  int64_t per_token;            // rows
  float eps;
  bool centered;
};

template <typename Scalar>
void norm_rotary(const NormRotary<Scalar>& in, Scalar* y_TD, Stream stream);

// Returns the number of rows of grad_gain_BN that the backward pass writes. Their sum is the gain's gradient.
int64_t norm_rotary_blocks(int64_t rows);

template <typename Scalar>
void norm_rotary_backward(const NormRotary<Scalar>& in, const Scalar* grad_y_TD, Scalar* grad_x_TD,
                          float* grad_gain_BN, Stream stream);

}  // namespace dtopp::ops::cuda
