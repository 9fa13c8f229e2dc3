// norm_rotary's kernels for CUDA, as plain functions of device pointers (norm_rotary.h has the equations).
#pragma once

#include <cstdint>

#include "dtopp/ops/cuda/cuda_limits.h"
#include "dtopp/ops/cuda/cuda_number.h"
#include "dtopp/ops/cuda/cuda_stream.h"

namespace dtopp::cuda {

// Scalar: float, Bfloat16.
template <typename Scalar>
struct NormRotary {
  const Scalar *x_TD, *gain_D;
  const float *cos_TK, *sin_TK;
  int64_t tokens, hidden, width;  // T, D, K
  float eps;
  bool centred;
};

template <typename Scalar>
void norm_rotary(const NormRotary<Scalar>& in, Scalar* y_TD, Stream stream);

// How many rows of grad_gain_BD the backward pass writes; the gradient of the gain is their sum.
int64_t norm_rotary_blocks(int64_t tokens);

template <typename Scalar>
void norm_rotary_backward(const NormRotary<Scalar>& in, const Scalar* grad_y_TD, Scalar* grad_x_TD,
                          float* grad_gain_BD, Stream stream);

}  // namespace dtopp::cuda
