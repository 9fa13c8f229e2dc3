// The statistics of one row, shared by the CPU kernels that normalize.
#pragma once

#include <cmath>

#include "dtopp/ops/core/bfloat16.h"

namespace dtopp::ops {

// Writes x - mean to centred_D and returns 1 / sqrt(var + eps). If `centred` is false, the mean is taken as
// 0.
template <typename Scalar>
[[gnu::always_inline]] inline float centre(const Scalar* x_D, int64_t hidden, float eps, bool centred,
                                           float* centred_D) {
  float sum = 0;
  if (centred) {
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < hidden; ++d) sum += load(x_D[d]);
  }
  const float mean = sum / static_cast<float>(hidden);
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t d = 0; d < hidden; ++d) {
    centred_D[d] = load(x_D[d]) - mean;
    squares += centred_D[d] * centred_D[d];
  }
  return 1 / std::sqrt(squares / static_cast<float>(hidden) + eps);
}

}  // namespace dtopp::ops
