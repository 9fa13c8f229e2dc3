// Multiplies packed rows with some columns of a weight. One thread packs the columns block by block, so that
// the packed copy never leaves the cache. For few rows it packs nothing (multiply_few_rows).
#pragma once

#include "dtopp/ops/gemm/cpu_kernel.h"
#include "dtopp/ops/gemm/matrix_tiles.h"

namespace dtopp::ops {

// Multiplies few rows with a weight, C = A W^T. The weight is read once and in its own order, because memory
// is what limits the product of few rows. It is transposed in registers; nothing is packed.

constexpr int64_t kMostFewRows = 12;

// C[m * ldc + n] = sum over k < K of A[m, k] weight_NK[n * K + k], for m < M <= kMostFewRows and n < N. The
// sums equal those of VectorTiles<Real>::multiply bit for bit. A is packed by rows, its blocks of kTileDepth
// are `block` numbers apart. Prefetches as many weights from `next_NK` on as are multiplied at once.
template <typename Real, typename Scalar>
void multiply_few_rows(const Real* left, int64_t block, int64_t M, const Scalar* weight_NK, int64_t N,
                       int64_t K, Real* C, int64_t ldc, const Scalar* next_NK);

constexpr int64_t kFewRowsPrefetch = 43;  // four strips prefetch as many lines as a block has

// A right operand B [K, N] stored in a weight. The rows of B, or its columns if `transposed`, are `stride`
// numbers apart.
template <typename Scalar>
struct RightSide {
  const Scalar* from;
  int64_t stride;
  bool transposed;

  // Packs B[k .. k + depth, n .. n + columns]. Prefetches `next` if B is transposed.
  template <typename Tiles>
  void pack(int64_t k, int64_t depth, int64_t n, int64_t columns, const NextRows& next,
            typename Tiles::Packed* packed) const {
    if (transposed) {
      Tiles::pack_right_transposed(from + n * stride + k, stride, depth, columns, 0, columns, packed, next);
    } else {
      const Scalar* start = from + k * stride + n;
      Tiles::pack_right_rows([&](int64_t i) { return start + i * stride; }, depth, columns, 0, columns,
                             packed);
    }
  }
  NextRows rows(int64_t k, int64_t depth, int64_t n, int64_t columns) const {
    constexpr int64_t kBytes = sizeof(Scalar);
    if (transposed) return {from + n * stride + k, depth * kBytes, stride * kBytes};
    return {from + k * stride + n, columns * kBytes, stride * kBytes};
  }
};

// Rows packed by rows. Their blocks of kTileDepth numbers are `block` numbers apart.
template <typename Packed>
struct LeftSide {
  const Packed* packed;
  int64_t block, rows, K;
};

// to = the rows times the columns [n, n + columns) of B. The rows of `to` are `ldc` numbers apart. `buffer`:
// memory for Tiles::right_size(kTileDepth, columns) numbers. Prefetches `after` at the end.
template <typename Tiles, typename Scalar>
void multiply_right_side(const LeftSide<typename Tiles::Packed>& left, const RightSide<Scalar>& B, int64_t n,
                         int64_t columns, typename Tiles::Packed* buffer, typename Tiles::Real* to,
                         int64_t ldc, const NextRows& after) {
  const int64_t rows = left.rows, K = left.K;
  if constexpr (std::is_same_v<typename Tiles::Packed, typename Tiles::Real>) {
    if (B.transposed && B.stride == K && rows <= kMostFewRows)
      return multiply_few_rows(left.packed, left.block, rows, B.from + n * K, columns, K, to, ldc,
                               static_cast<const Scalar*>(after.first));
  }
  for (int64_t k = 0; k < K; k += kTileDepth) {
    const int64_t depth = std::min(kTileDepth, K - k), following = k + depth;
    const NextRows next =
        following < K ? B.rows(following, std::min(kTileDepth, K - following), n, columns) : after;
    // The product of few rows ends before it has prefetched all of `next`.
    B.template pack<Tiles>(k, depth, n, columns, rows < kFewRowsPrefetch ? next : NextRows{}, buffer);
    Tiles::template multiply<Order::kRows>(left.packed + k / kTileDepth * left.block, buffer, rows, columns,
                                           depth, to, ldc, k > 0, next);
  }
  if (K == 0) clear_unless_added(rows, columns, to, ldc, false);
}

}  // namespace dtopp::ops
