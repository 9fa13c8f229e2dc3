// Multiplies bf16 rows with a weight, C = A W^T, as dot products along K, for generation.
//
// A weight is read in its own order, and once for all rows that a caller passes: memory is what limits the
// product of few rows. Nothing is packed. Every sum has the same order, so a row of C does not depend on the
// other rows.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

struct DotProducts {
  // Rows that a caller multiplies at once: they stay in the second-level cache.
  static constexpr int64_t kMostRows = 128;

  // Returns true if `rows` rows of x are multiplied in this way: bf16 on a CPU with AVX512_BF16, and few rows
  // if it has AMX, whose tiles are several times as fast with many.
  static bool multiply_rows_of(const Tensor& x, int64_t rows);

  // C[m * ldc + n] = sum over k < K of rows[m][k] weight_NK[n * K + k], for m < M and n < N. next_NK: the
  // weights that the caller multiplies next, which are prefetched; null: those behind weight_NK.
  static void multiply(const c10::BFloat16* const* rows, int64_t M, const c10::BFloat16* weight_NK, int64_t N,
                       int64_t K, float* C, int64_t ldc, const c10::BFloat16* next_NK = nullptr);
};

// x_TD W_ND^T of each weight, in `type`, bf16 or fp32. Threads are woken once for all weights.
std::vector<Tensor> multiply_by_dot_products(const Tensor& x_TD, at::TensorList weights, at::ScalarType type);

}  // namespace dtopp::ops
