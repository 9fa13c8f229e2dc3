#include "dtopp/ops/gemm/matrix_tiles.h"

#include "dtopp/ops/gemm/vector_registers.h"

namespace dtopp::ops {
namespace {

// Number of k between two prefetches of a line. Tiles with less arithmetic per k prefetch less often.
template <typename Regs>
constexpr int64_t kPrefetchStep = Regs::kBytes* Regs::kRows >= 64 * 14 ? 2 : 8;

// The memory that a product prefetches into the second-level cache, one line after another.
struct Coming {
  const char* line;
  int64_t left, run, skip;  // bytes: left of the current row, per row, between two rows

  explicit Coming(const NextRows& next)
      : line(static_cast<const char*>(next.first)),
        left(next.bytes),
        run(next.bytes),
        skip(next.stride - next.bytes) {}

  [[gnu::always_inline]] void fetch() {
    __builtin_prefetch(line, 0, 2);
    line += kLineBytes;
    left -= kLineBytes;
    if (left <= 0) {
      line += left + skip;
      left = run;
    }
  }
};

// sum += the outer product of column k of a strip and row k of a panel.
template <typename Real, typename Regs, Order kOrder, int kRows>
[[gnu::always_inline]] inline void add_outer_product(const Real* left, const Real* right,
                                                     VectorOf<Real, Regs> (&sum)[kRows][Regs::kVectors]) {
  using Vector = VectorOf<Real, Regs>;
  constexpr int64_t kRowStep = kOrder == Order::kRows ? kStripStride : 1;
  Vector b[Regs::kVectors];
#pragma GCC unroll 2
  for (int j = 0; j < Regs::kVectors; ++j)
    b[j] = load_vector<Vector>(right + j * Regs::template kLanes<Real>);
#pragma GCC unroll 14
  for (int m = 0; m < kRows; ++m) {
    const Vector a = left[m * kRowStep] - Vector{};  // broadcasts one number to all lanes
#pragma GCC unroll 2
    for (int j = 0; j < Regs::kVectors; ++j) sum[m][j] += a * b[j];
  }
}

// Multiplies kRows rows with one panel. Prefetches the lines of C for writing and the lines of `coming` for
// reading.
template <typename Real, typename Regs, Order kOrder, int kRows>
[[gnu::always_inline]] inline void multiply_tile(const Real* left, const Real* right, Coming& coming,
                                                 int64_t depth, Real* C, int64_t ldc, bool add) {
  using Vector = VectorOf<Real, Regs>;
  constexpr int64_t kLanes = Regs::template kLanes<Real>, kColumns = Regs::template kColumns<Real>;
  constexpr int64_t kColumnStep = kOrder == Order::kRows ? 1 : Regs::kRows;
  Vector sum[kRows][Regs::kVectors] = {};
#pragma GCC unroll 14
  for (int m = 0; m < kRows; ++m) {
    __builtin_prefetch(C + m * ldc, 1);
    __builtin_prefetch(C + m * ldc + kColumns - 1, 1);
  }
  int64_t k = 0;
  constexpr int64_t kStep = kPrefetchStep<Regs>;
  for (; k + kStep <= depth; k += kStep) {
    coming.fetch();
#pragma GCC unroll 8
    for (int i = 0; i < kStep; ++i) {
      add_outer_product<Real, Regs, kOrder, kRows>(left, right, sum);
      left += kColumnStep;
      right += kColumns;
    }
  }
  for (; k < depth; ++k) {
    add_outer_product<Real, Regs, kOrder, kRows>(left, right, sum);
    left += kColumnStep;
    right += kColumns;
  }
#pragma GCC unroll 14
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
    for (int j = 0; j < Regs::kVectors; ++j) {
      Real* to = C + m * ldc + j * kLanes;
      store_vector(to, add ? load_vector<Vector>(to) + sum[m][j] : sum[m][j]);
    }
  }
}

// Dispatches a strip of 1 to kRows rows to the kernel of its height.
template <typename Real, typename Regs, Order kOrder, int kRows = Regs::kRows>
[[gnu::always_inline]] inline void multiply_strip(const Real* left, const Real* right, Coming& coming,
                                                  int64_t rows, int64_t depth, Real* C, int64_t ldc,
                                                  bool add) {
  if (rows == kRows) {
    multiply_tile<Real, Regs, kOrder, kRows>(left, right, coming, depth, C, ldc, add);
  } else if constexpr (kRows > 1) {
    multiply_strip<Real, Regs, kOrder, kRows - 1>(left, right, coming, rows, depth, C, ldc, add);
  }
}

template <typename Real, typename Regs, Order kOrder>
void multiply_blocks(const Real* left, const Real* right, int64_t M, int64_t N, int64_t K, Real* C,
                     int64_t ldc, bool add, const NextRows& next) {
  constexpr int64_t kRows = Regs::kRows, kColumns = Regs::template kColumns<Real>;
  Coming coming(next);
  alignas(64) std::array<Real, kRows * kColumns> edge;  // a tile of the last panel, partly outside C
  for (int64_t k = 0; k < K; k += kTileDepth) {
    const int64_t depth = std::min(kTileDepth, K - k);
    const int64_t strip_step =
        kOrder == Order::kRows ? kStripStride : depth;  // numbers of packed A per row of C
    for (int64_t n = 0; n < N; n += kColumns) {
      const int64_t columns = std::min(kColumns, N - n);
      const Real* after = right + (n + kColumns) * depth;
      if (next.first == nullptr)
        coming = Coming({after, kColumns * depth * static_cast<int64_t>(sizeof(Real)), 0});
      for (int64_t m = 0; m < M; m += kRows) {
        const int64_t rows = std::min(kRows, M - m);
        const Real *strip = left + m * strip_step, *panel = right + n * depth;
        Real* to = C + m * ldc + n;
        const bool inside = columns == kColumns;  // one call for both: the kernels are compiled once
        multiply_strip<Real, Regs, kOrder>(strip, panel, coming, rows, depth, inside ? to : edge.data(),
                                           inside ? ldc : kColumns, inside && (add || k > 0));
        if (!inside) put_tile(edge.data(), kColumns, rows, columns, to, ldc, add || k > 0);
      }
    }
    left += kOrder == Order::kRows ? M * kStripStride : round_up(M, kRows) * depth;
    right += round_up(N, kColumns) * depth;
  }
}

// Transposes one panel of one block. Columns from `columns` on are zeros. Prefetches lines of `coming`,
// unless it is null.
template <typename Regs, typename Scalar, typename Real>
[[gnu::always_inline]] inline void transpose_panel(const Scalar* from, int64_t stride, int64_t columns,
                                                   int64_t depth, Coming* coming, Real* to) {
  constexpr int64_t kLanes = Regs::template kLanes<Real>, kColumns = Regs::template kColumns<Real>;
  constexpr int64_t kLines =
      kLanes * kLanes * static_cast<int64_t>(sizeof(Scalar)) / kLineBytes;  // per square
  for (int64_t n = 0; n < kColumns; n += kLanes) {
    int64_t k = 0;
    if (n + kLanes <= columns) {
      for (; k + kLanes <= depth; k += kLanes) {
        for (int64_t line = 0; line < kLines && coming != nullptr; ++line) coming->fetch();
        transpose_square<Regs>(from + n * stride + k, stride, to + k * kColumns + n, kColumns);
      }
    }
    for (; k < depth; ++k)
      for (int64_t c = n; c < n + kLanes; ++c)
        to[k * kColumns + c] = c < columns ? static_cast<Real>(load(from[c * stride + k])) : Real(0);
  }
}

}  // namespace

template <typename Real>
TileShape VectorTiles<Real>::shape() {
  TileShape shape{};
  run_with_registers<Real>([&]<typename Regs>(Regs) {
    shape = {Regs::kRows, Regs::template kColumns<Real>};
  });
  return shape;
}

template <typename Real>
template <Order kOrder>
void VectorTiles<Real>::multiply(const Packed* left, const Packed* right, int64_t M, int64_t N, int64_t K,
                                 Real* C, int64_t ldc, bool add, const NextRows& next) {
  if (K == 0) return clear_unless_added(M, N, C, ldc, add);
  run_with_registers<Real>([&](auto registers) {
    multiply_blocks<Real, decltype(registers), kOrder>(left, right, M, N, K, C, ldc, add, next);
  });
}

template <typename Real>
template <typename Scalar>
void VectorTiles<Real>::pack_right_transposed(const Scalar* transposed, int64_t stride, int64_t K, int64_t N,
                                              int64_t begin, int64_t end, Packed* packed,
                                              const NextRows& next) {
  run_with_registers<Real>([&](auto registers) {
    using Regs = decltype(registers);
    constexpr int64_t kColumns = Regs::template kColumns<Real>;
    Coming coming(next);
    for (int64_t k = 0; k < K; k += kTileDepth, packed += kTileDepth * round_up(N, kColumns)) {
      const int64_t depth = std::min(kTileDepth, K - k);
      for (int64_t n = begin; n < end; n += kColumns)
        transpose_panel<Regs>(transposed + n * stride + k, stride, std::min(kColumns, N - n), depth,
                              next.first == nullptr ? nullptr : &coming, packed + n * depth);
    }
  });
}

template struct VectorTiles<float>;
template struct VectorTiles<double>;

template <typename Real>
using Multiply = void(const Real*, const Real*, int64_t, int64_t, int64_t, Real*, int64_t, bool,
                      const NextRows&);
template <typename Scalar, typename Real>
using PackTransposed = void(const Scalar*, int64_t, int64_t, int64_t, int64_t, int64_t, Real*,
                            const NextRows&);

template Multiply<float> VectorTiles<float>::multiply<Order::kRows>;
template Multiply<float> VectorTiles<float>::multiply<Order::kColumns>;
template Multiply<double> VectorTiles<double>::multiply<Order::kRows>;
template Multiply<double> VectorTiles<double>::multiply<Order::kColumns>;
template PackTransposed<float, float> VectorTiles<float>::pack_right_transposed<float>;
template PackTransposed<c10::BFloat16, float> VectorTiles<float>::pack_right_transposed<c10::BFloat16>;
template PackTransposed<double, double> VectorTiles<double>::pack_right_transposed<double>;

}  // namespace dtopp::ops
