#include "dtopp/ops/gemm/right_side.h"

#include "dtopp/ops/gemm/vector_registers.h"

namespace dtopp::ops {
namespace {

constexpr int kRowsAtOnce = 6;  // and a square of the weight fit into 32 registers

// The operands of as many columns of C as a vector has lanes. Columns from `columns` on lie outside the
// weight.
template <typename Real, typename Scalar>
struct FewRows {
  const Real* left;
  int64_t block;
  const Scalar* weight_NK;
  const Scalar* ahead_NK;  // prefetched in the order of the memory: processors recognize one stream of reads
  int64_t columns, K;
  Real* C;
  int64_t ldc;
};

// sum[m] += left[m, k] * column for one k.
template <typename Real, typename Vector, int kRows>
[[gnu::always_inline]] inline void add_column(const Real* left, const Vector& column, Vector (&sum)[kRows]) {
#pragma GCC unroll 6
  for (int m = 0; m < kRows; ++m) {
    const Vector a = left[m * kStripStride] - Vector{};  // broadcasts one number to all lanes
    sum[m] += a * column;
  }
}

template <typename Regs, int kRows, typename Real, typename Scalar>
[[gnu::always_inline]] inline void multiply_lanes(const FewRows<Real, Scalar>& few) {
  using Vector = VectorOf<Real, Regs>;
  constexpr int64_t kLanes = Regs::template kLanes<Real>;
  constexpr int64_t kSquareBytes = kLanes * kLanes * static_cast<int64_t>(sizeof(Scalar));
  const auto* ahead = reinterpret_cast<const char*>(few.ahead_NK);
  std::array<const Scalar*, kLanes> rows;
  for (int64_t n = 0; n < kLanes; ++n) rows[n] = few.weight_NK + std::min(n, few.columns - 1) * few.K;
  Vector total[kRows] = {};
  for (int64_t first = 0; first < few.K; first += kTileDepth) {
    const int64_t depth = std::min(kTileDepth, few.K - first);
    const Real* left = few.left + first / kTileDepth * few.block;
    Vector sum[kRows] = {};
    int64_t k = 0;
    for (; k + kLanes <= depth; k += kLanes) {
#pragma GCC unroll 16
      for (int64_t line = 0; line < kSquareBytes; line += kLineBytes) __builtin_prefetch(ahead + line, 0, 2);
      ahead += kSquareBytes;
      Vector columns[kLanes];
#pragma GCC unroll 16
      for (int64_t n = 0; n < kLanes; ++n) columns[n] = load_converted<Vector, Real>(rows[n] + first + k);
      transpose<kLanes, kLanes / 2>(columns);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) add_column(left + k + i, columns[i], sum);
    }
    for (; k < depth; ++k) {
      Vector column;
      for (int64_t n = 0; n < kLanes; ++n) column[n] = load(rows[n][first + k]);
      add_column(left + k, column, sum);
    }
    for (int m = 0; m < kRows; ++m) total[m] = first == 0 ? sum[m] : total[m] + sum[m];
  }
  for (int m = 0; m < kRows; ++m) {
    if (few.columns >= kLanes) {
      store_vector(few.C + m * few.ldc, total[m]);
    } else {
      for (int64_t n = 0; n < few.columns; ++n) few.C[m * few.ldc + n] = total[m][n];
    }
  }
}

template <typename Regs, typename Real, typename Scalar, int kRows = kRowsAtOnce>
[[gnu::always_inline]] inline void multiply_rows(int64_t rows, const FewRows<Real, Scalar>& few) {
  if (rows == kRows) {
    multiply_lanes<Regs, kRows>(few);
  } else if constexpr (kRows > 1) {
    multiply_rows<Regs, Real, Scalar, kRows - 1>(rows, few);
  }
}

}  // namespace

template <typename Real, typename Scalar>
void multiply_few_rows(const Real* left, int64_t block, int64_t M, const Scalar* weight_NK, int64_t N,
                       int64_t K, Real* C, int64_t ldc, const Scalar* next_NK) {
  const int64_t blocks = (M + kRowsAtOnce - 1) / kRowsAtOnce;
  run_with_registers<Real>([&]<typename Regs>(Regs) {
    constexpr int64_t kLanes = Regs::template kLanes<Real>;
    for (int64_t n = 0; n < N; n += kLanes) {
      const int64_t following = n + kLanes;
      const Scalar* ahead = following < N ? weight_NK + following * K : next_NK;
      FewRows<Real, Scalar> few{left, block, weight_NK + n * K, ahead, N - n, K, C + n, ldc};
      for (int64_t i = 0; i < blocks; ++i) {
        const int64_t rows = M * (i + 1) / blocks - M * i / blocks;
        multiply_rows<Regs>(rows, few);
        few.left += rows * kStripStride;
        few.C += rows * ldc;
      }
    }
  });
}

template <typename Scalar, typename Real>
using MultiplyFewRows = void(const Real*, int64_t, int64_t, const Scalar*, int64_t, int64_t, Real*, int64_t,
                             const Scalar*);

template MultiplyFewRows<float, float> multiply_few_rows;
template MultiplyFewRows<c10::BFloat16, float> multiply_few_rows;
template MultiplyFewRows<double, double> multiply_few_rows;

}  // namespace dtopp::ops
