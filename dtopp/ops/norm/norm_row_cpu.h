// The statistics of one row, shared by the CPU kernels that normalize.
#pragma once

#include <cmath>

#include "dtopp/ops/core/bfloat16.h"

namespace dtopp::ops {

typedef float Lanes __attribute__((vector_size(64)));
constexpr int64_t kRowLanes = 16;

[[gnu::always_inline]] inline Lanes lanes_of(const float* from) {
  Lanes lanes;
  __builtin_memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

[[gnu::always_inline]] inline Lanes lanes_of(const c10::BFloat16* from) {
  typedef uint16_t Halves __attribute__((vector_size(32)));
  typedef uint32_t Words __attribute__((vector_size(64)));
  Halves halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  return std::bit_cast<Lanes>(__builtin_convertvector(halves, Words) << 16);
}

// Adds the lanes in pairs. The compiler's own reductions add one lane after the other, which takes longer
// than a row of 64 numbers.
[[gnu::always_inline]] inline float sum_of(Lanes sum) {
  sum += __builtin_shufflevector(sum, sum, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  sum += __builtin_shufflevector(sum, sum, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Writes x - mean to centered_D and returns 1 / sqrt(var + eps), or NaN if the variance overflows. If
// `centered` is false, the mean is taken as 0.
template <typename Scalar>
[[gnu::always_inline]] inline float center(const Scalar* x_D, int64_t hidden, float eps, bool centered,
                                           float* centered_D) {
  const int64_t whole = hidden / kRowLanes * kRowLanes;
  const auto count = static_cast<float>(hidden);
  Lanes sums{}, squares{};
  for (int64_t d = 0; d < whole; d += kRowLanes) {
    const Lanes x = lanes_of(x_D + d);
    __builtin_memcpy(centered_D + d, &x, sizeof(x));
    sums += x;
    squares += x * x;
  }
  float sum = sum_of(sums), square = 0;
  for (int64_t d = whole; d < hidden; ++d) {
    centered_D[d] = load(x_D[d]);
    sum += centered_D[d];
    square += centered_D[d] * centered_D[d];
  }
  if (centered) {
    const float mean = sum / count;
    squares = Lanes{};
    square = 0;
    for (int64_t d = 0; d < whole; d += kRowLanes) {
      const Lanes x = lanes_of(centered_D + d) - mean;
      __builtin_memcpy(centered_D + d, &x, sizeof(x));
      squares += x * x;
    }
    for (int64_t d = whole; d < hidden; ++d) {
      centered_D[d] -= mean;
      square += centered_D[d] * centered_D[d];
    }
  }
  const float variance = (sum_of(squares) + square) / count;
  const float zero_or_nan = variance - variance;
  return 1 / std::sqrt(variance + eps) + zero_or_nan;
}

// Writes the gradient of x from a row of normalized numbers n and the gradients g of these numbers.
// `residual` is a further gradient of x, or null.
template <typename Scalar>
[[gnu::always_inline]] inline void store_norm_gradient(const float* n_D, const float* g_D, int64_t hidden,
                                                       float inverse, bool centered, const Scalar* residual_D,
                                                       Scalar* grad_x_D) {
  const int64_t whole = hidden / kRowLanes * kRowLanes;
  const auto count = static_cast<float>(hidden);
  Lanes sums{}, products{};
  for (int64_t d = 0; d < whole; d += kRowLanes) {
    const Lanes g = lanes_of(g_D + d);
    sums += g;
    products += g * lanes_of(n_D + d);
  }
  float sum = sum_of(sums), product = sum_of(products);
  for (int64_t d = whole; d < hidden; ++d) {
    sum += g_D[d];
    product += g_D[d] * n_D[d];
  }
  const float mean = centered ? sum / count : 0, projection = product / count;
  if (residual_D == nullptr) {
#pragma omp simd
    for (int64_t d = 0; d < hidden; ++d) store(grad_x_D + d, inverse * (g_D[d] - mean - n_D[d] * projection));
    return;
  }
#pragma omp simd
  for (int64_t d = 0; d < hidden; ++d)
    store(grad_x_D + d, load(residual_D[d]) + inverse * (g_D[d] - mean - n_D[d] * projection));
}

}  // namespace dtopp::ops
