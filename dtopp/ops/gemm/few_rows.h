// Multiplies few rows with a weight, C = A W^T. The weight is read once and in its own order, because memory
// is what limits the product of few rows. It is transposed in registers; nothing is packed.
#pragma once

#include "dtopp/ops/gemm/matrix_tiles.h"

namespace dtopp::ops {

constexpr int64_t kMostFewRows = 12;

// C[m * ldc + n] = sum over k < K of A[m, k] weight_NK[n * K + k], for m < M <= kMostFewRows and n < N. The
// sums equal those of VectorTiles<Real>::multiply bit for bit. A is packed by rows, its blocks of kTileDepth
// are `block` numbers apart. Prefetches as many weights from `next_NK` on as are multiplied at once.
template <typename Real, typename Scalar>
void multiply_few_rows(const Real* left, int64_t block, int64_t M, const Scalar* weight_NK, int64_t N,
                       int64_t K, Real* C, int64_t ldc, const Scalar* next_NK);

}  // namespace dtopp::ops
