// Multiplies packed matrices, C = A B, on one CPU thread.
//
// Packing gathers, transposes and converts rows, so none of these needs a pass or a buffer of its own. The
// caller can process C while it is in cache.
//
// A is packed in strips of TileShape::rows rows and B in panels of TileShape::columns columns. Both are cut
// along K into blocks of kTileDepth. The kernel multiplies one strip and one panel of a block in registers.
#pragma once

#include "dtopp/ops/core/bfloat16.h"
#include "dtopp/ops/core/simd.h"

namespace dtopp::ops {

// A panel of 256 x 32 floats takes 32 KiB. It stays in the first-level cache while all strips of A are
// multiplied with it.
constexpr int64_t kTileDepth = 256;

// Distance between the rows of a strip. It exceeds kTileDepth because rows a power of two apart share cache
// sets.
constexpr int64_t kStripStride = kTileDepth + 16;

// Size of a tile of C in vector registers. Of 32 registers the tile takes all but two for B and one for A,
// and of 16 likewise.
template <int kBytesOf, int kRowsOf>
struct Registers {
  static constexpr int kBytes = kBytesOf;  // per vector
  static constexpr int kRows = kRowsOf;
  static constexpr int kVectors = 2;  // vectors per row of a tile

  template <typename Real>
  static constexpr int64_t kLanes = kBytes / static_cast<int64_t>(sizeof(Real));
  template <typename Real>
  static constexpr int64_t kColumns = kVectors* kLanes<Real>;
};
using Avx512Registers = Registers<64, 14>;
using Avx2Registers = Registers<32, 6>;
using BaselineRegisters = Registers<16, 6>;

// Calls `body` with the registers of the widest vectors and compiles it for them. Double serves gradient
// checks alone: it has the baseline's kernels only, which halves the compile time.
template <typename Real, typename Body>
void run_with_registers(const Body& body) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<Real, float>) {
    switch (widest_simd()) {
      case Simd::kAvx512:
        return run_avx512([&] { body(Avx512Registers{}); });
      case Simd::kAvx2:
        return run_avx2([&] { body(Avx2Registers{}); });
      case Simd::kBaseline:
        break;
    }
  }
#endif
  body(BaselineRegisters{});
}

struct TileShape {
  int64_t rows, columns;
};

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Memory that the caller reads next: rows of `bytes` bytes, which packing or a product prefetches.
struct NextRows {
  const void* first = nullptr;  // null: a product prefetches the next panel of its own right operand
  int64_t bytes = 0, stride = 0;
};

// Memory order of A: by rows (an activation) or by columns (a transposed operand).
enum class Order { kRows, kColumns };

template <typename From, typename To>
[[gnu::always_inline]] inline void copy_converted(const From* from, To* to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) store(to + i, load(from[i]));
}

// The product over zero k: clears C unless the product is to be added to it.
template <typename Real>
void clear_unless_added(int64_t M, int64_t N, Real* C, int64_t ldc, bool add) {
  for (int64_t m = 0; m < M && !add; ++m) std::fill_n(C + m * ldc, N, Real(0));
}

// Stores or adds the part of a tile that lies in C: `rows` rows and `columns` columns. The tile's rows are
// `width` numbers apart.
template <typename Real>
void put_tile(const Real* tile, int64_t width, int64_t rows, int64_t columns, Real* C, int64_t ldc,
              bool add) {
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < columns; ++n) {
      const Real sum = tile[m * width + n];
      C[m * ldc + n] = add ? C[m * ldc + n] + sum : sum;
    }
  }
}

// Copies min(kCount, left) numbers.
template <int64_t kCount, typename From, typename To>
[[gnu::always_inline]] inline void copy_up_to(const From* from, To* to, int64_t left) {
  if (left >= kCount) return copy_converted(from, to, kCount);
  copy_converted(from, to, left);
}

// Calls body(k, position) for k < depth and the positions 0, step, 2 step ... < width. Groups of 8 k visit
// all positions together: their inputs are still in cache at the next position, and their outputs fill whole
// cache lines.
template <typename Body>
[[gnu::always_inline]] inline void for_few(int64_t depth, int64_t width, int64_t step, const Body& body) {
  constexpr int64_t kFew = 8;
  for (int64_t first = 0; first < depth; first += kFew) {
    const int64_t last = std::min(first + kFew, depth);
    for (int64_t position = 0; position < width; position += step)
      for (int64_t k = first; k < last; ++k) body(k, position);
  }
}

// Packs and multiplies in float (VectorTiles<float>) or double. Packers accept any type that `load` reads.
template <typename RealOf>
struct VectorTiles {
  using Real = RealOf;                      // type of C
  using Packed = RealOf;                    // type of the packed operands
  static constexpr bool kFinishes = false;  // see cpu_kernel.h

  // Rows of A that a caller packs at once. It is a multiple of the strip height of every instruction set, and
  // the packed rows stay in the second-level cache.
  static constexpr int64_t kLargestBlock = 252;
  // Rows of C that are accumulated over several blocks of K at once. Fewer rows would pack B more often.
  static constexpr int64_t kLargestSum = 378;

  // Size of the packed operands, in numbers.
  template <Order kOrder>
  static int64_t left_size(int64_t M, int64_t K) {
    if (kOrder == Order::kRows) return round_up(K, kTileDepth) / kTileDepth * M * kStripStride;
    return round_up(M, shape().rows) * K;
  }
  static int64_t right_size(int64_t K, int64_t N) { return round_up(N, shape().columns) * K; }

  // Packs row m of A, K numbers, for Order::kRows.
  template <typename Scalar>
  [[gnu::always_inline]] static void pack_left_row(const Scalar* row_K, int64_t m, int64_t M, int64_t K,
                                                   Packed* packed) {
    for (int64_t k = 0; k < K; k += kTileDepth, packed += M * kStripStride)
      copy_converted(row_K + k, packed + m * kStripStride, std::min(kTileDepth, K - k));
  }

  // Packs A for Order::kColumns. column(k) points to A[0, k] ... A[M - 1, k].
  template <typename Column>
  static void pack_left_columns(const Column& column, int64_t M, int64_t K, Packed* packed) {
    run_with_registers<Real>([&]<typename Regs>(Regs) {
      constexpr int64_t kRows = Regs::kRows;
      for (int64_t first = 0; first < K; first += kTileDepth, packed += kTileDepth * round_up(M, kRows)) {
        const int64_t depth = std::min(kTileDepth, K - first);
        for_few(depth, M, kRows, [&](int64_t k, int64_t m) {
          copy_up_to<kRows>(column(first + k) + m, packed + m * depth + k * kRows, M - m);
        });
      }
    });
  }

  // Packs the columns [begin, end) of B. `begin` is the start of a panel, and row(k) points to B[k, 0] ...
  // B[k, N - 1].
  template <typename Row>
  static void pack_right_rows(const Row& row, int64_t K, int64_t N, int64_t begin, int64_t end,
                              Packed* packed) {
    run_with_registers<Real>([&]<typename Regs>(Regs) {
      constexpr int64_t kColumns = Regs::template kColumns<Real>;
      for (int64_t first = 0; first < K; first += kTileDepth, packed += kTileDepth * round_up(N, kColumns)) {
        const int64_t depth = std::min(kTileDepth, K - first);
        for_few(depth, end - begin, kColumns, [&](int64_t k, int64_t n) {
          Packed* to = packed + (begin + n) * depth + k * kColumns;
          copy_up_to<kColumns>(row(first + k) + begin + n, to, N - begin - n);
          if (N - begin - n < kColumns) std::fill(to + (N - begin - n), to + kColumns, Packed(0));
        });
      }
    });
  }

  // Packs the same columns from B^T: B[k, n] = transposed[n * stride + k]. Prefetches as many numbers of
  // `next` meanwhile.
  template <typename Scalar>
  static void pack_right_transposed(const Scalar* transposed, int64_t stride, int64_t K, int64_t N,
                                    int64_t begin, int64_t end, Packed* packed, const NextRows& next = {});

  // C[m, n] = sum over k of A[m, k] B[k, n], plus the old C[m, n] if `add`. C's rows are `ldc` numbers apart.
  // Prefetches `next` meanwhile.
  template <Order kOrder>
  static void multiply(const Packed* left, const Packed* right, int64_t M, int64_t N, int64_t K, Real* C,
                       int64_t ldc, bool add, const NextRows& next = {});

  static TileShape shape();

  // Each thread calls this after its last product.
  static void release() {}
};

}  // namespace dtopp::ops
