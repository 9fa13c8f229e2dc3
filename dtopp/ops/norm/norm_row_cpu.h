// The statistics of one row, shared by the CPU kernels that normalize.
#pragma once

#include <cmath>

#include "dtopp/ops/core/bfloat16.h"

namespace dtopp::ops {

// Returns the sum of a[d] b[d], or of a[d] if b is null. The lanes of a register are added in pairs: the
// compiler's own reductions add one lane after the other, which takes longer than a row of 64 numbers.
[[gnu::always_inline]] inline float sum_products(const float* a, const float* b, int64_t count) {
  typedef float Lanes __attribute__((vector_size(64)));
  constexpr int64_t kLanes = 16;
  Lanes sum = {};
  int64_t d = 0;
  for (; d + kLanes <= count; d += kLanes) {
    Lanes x, y;
    __builtin_memcpy(&x, a + d, sizeof(x));
    if (b != nullptr) {
      __builtin_memcpy(&y, b + d, sizeof(y));
      x *= y;
    }
    sum += x;
  }
  sum += __builtin_shufflevector(sum, sum, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  sum += __builtin_shufflevector(sum, sum, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  float rest = 0;
  for (; d < count; ++d) rest += b == nullptr ? a[d] : a[d] * b[d];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]) + rest;
}

// Writes x - mean to centred_D and returns 1 / sqrt(var + eps), or NaN if the variance overflows. If
// `centred` is false, the mean is taken as 0.
template <typename Scalar>
[[gnu::always_inline]] inline float centre(const Scalar* x_D, int64_t hidden, float eps, bool centred,
                                           float* centred_D) {
#pragma omp simd
  for (int64_t d = 0; d < hidden; ++d) centred_D[d] = load(x_D[d]);
  if (centred) {
    const float mean = sum_products(centred_D, nullptr, hidden) / static_cast<float>(hidden);
#pragma omp simd
    for (int64_t d = 0; d < hidden; ++d) centred_D[d] -= mean;
  }
  const float variance = sum_products(centred_D, centred_D, hidden) / static_cast<float>(hidden);
  const float zero_or_nan = variance - variance;
  return 1 / std::sqrt(variance + eps) + zero_or_nan;
}

// Writes the gradient of x from a row of normalized numbers n and the gradients g of these numbers.
template <typename Scalar>
[[gnu::always_inline]] inline void store_norm_gradient(const float* n_D, const float* g_D, int64_t hidden,
                                                       float inverse, bool centred, Scalar* grad_x_D) {
  const auto count = static_cast<float>(hidden);
  const float mean = centred ? sum_products(g_D, nullptr, hidden) / count : 0;
  const float projection = sum_products(g_D, n_D, hidden) / count;
#pragma omp simd
  for (int64_t d = 0; d < hidden; ++d) store(grad_x_D + d, inverse * (g_D[d] - mean - n_D[d] * projection));
}

}  // namespace dtopp::ops
