// Matrix products of one thread, C = A B, whose operands are packed first: packing is where rows are
// gathered, transposed and converted, so that none of this needs a pass or a buffer of its own, and where the
// caller looks at C while it is still in cache.
//
// A is packed in strips of `rows` rows, B in panels of `columns` columns (TileShape), both cut along K into
// blocks of kTileDepth. The kernel multiplies a strip and a panel of one block into registers.
#pragma once

#include "dtopp/ops/core/bfloat16.h"
#include "dtopp/ops/core/simd.h"

namespace dtopp {

// A panel of 256 x 32 floats is 32 KiB: it stays in the first-level cache while strips of A pass by.
constexpr int64_t kTileDepth = 256;

// Rows of A keep this distance in a strip, not kTileDepth: at a power of two they would share cache sets.
constexpr int64_t kStripStride = kTileDepth + 16;

// A tile of C fills the vector registers: of 32, all but the two of B and one of A; of 16 likewise.
template <int kBytesOf, int kRowsOf>
struct Registers {
  static constexpr int kBytes = kBytesOf;  // of a vector
  static constexpr int kRows = kRowsOf;
  static constexpr int kVectors = 2;  // side by side in a tile

  template <typename Real>
  static constexpr int64_t kLanes = kBytes / static_cast<int64_t>(sizeof(Real));
  template <typename Real>
  static constexpr int64_t kColumns = kVectors* kLanes<Real>;
};
using Avx512Registers = Registers<64, 14>;
using Avx2Registers = Registers<32, 6>;
using BaselineRegisters = Registers<16, 6>;

// Calls body with the registers of the widest vectors, compiled for them.
template <typename Body>
void run_with_registers(const Body& body) {
#if defined(__x86_64__)
  switch (widest_simd()) {
    case Simd::kAvx512:
      return run_avx512([&] { body(Avx512Registers{}); });
    case Simd::kAvx2:
      return run_avx2([&] { body(Avx2Registers{}); });
    case Simd::kBaseline:
      break;
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

// Memory that the caller reads after a product, rows of `bytes` bytes: the product prefetches it as it goes.
struct NextRows {
  const void* first = nullptr;  // null: what follows in the product's own operands is prefetched instead
  int64_t bytes = 0, stride = 0;
};

// How A lies: row by row, as an activation is, or K by K, as it does where it is transposed.
enum class Order { kRows, kColumns };

// Packs and multiplies in float (in double). What a packer takes is in any type that `load` reads.
template <typename RealOf>
struct VectorTiles {
  using Real = RealOf;                      // of C
  using Packed = RealOf;                    // of the packed operands
  static constexpr bool kFinishes = false;  // see matrix_tiles_bf16.h

  // Rows of A that a caller packs at once: whole strips of every instruction set, and what belongs to them
  // stays in the second-level cache.
  static constexpr int64_t kLargestBlock = 252;
  // Rows of C that are summed up over several blocks of K at once: fewer would pack B more often.
  static constexpr int64_t kLargestSum = 378;

  // How many numbers the packed operands take.
  template <Order kOrder>
  static int64_t left_size(int64_t M, int64_t K);
  static int64_t right_size(int64_t K, int64_t N);

  // Row m of A, K numbers, into A packed by rows.
  template <typename Scalar>
  [[gnu::always_inline]] static void pack_left_row(const Scalar* row_K, int64_t m, int64_t M, int64_t K,
                                                   Packed* packed);

  // A packed by columns; column(k) points to A[0, k] ... A[M - 1, k].
  template <typename Column>
  static void pack_left_columns(const Column& column, int64_t M, int64_t K, Packed* packed);

  // Columns [begin, end) of B, begin at the start of a panel; row(k) points to B[k, 0] ... B[k, N - 1].
  template <typename Row>
  static void pack_right_rows(const Row& row, int64_t K, int64_t N, int64_t begin, int64_t end,
                              Packed* packed);

  // The same from B^T: B[k, n] = transposed[n * stride + k].
  template <typename Scalar>
  static void pack_right_transposed(const Scalar* transposed, int64_t stride, int64_t K, int64_t N,
                                    int64_t begin, int64_t end, Packed* packed);

  // C[m, n] = sum over k of A[m, k] B[k, n], plus C[m, n] where add. C's rows are ldc numbers apart.
  // Prefetches `next`.
  template <Order kOrder>
  static void multiply(const Packed* left, const Packed* right, int64_t M, int64_t N, int64_t K, Real* C,
                       int64_t ldc, bool add, const NextRows& next = {});

  static TileShape shape();

  // To be called by each thread after its last product.
  static void release() {}
};

template <typename From, typename To>
[[gnu::always_inline]] inline void copy_converted(const From* from, To* to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) store(to + i, load(from[i]));
}

// C, or nothing where it is added to: a product over no k.
template <typename Real>
void clear_unless_added(int64_t M, int64_t N, Real* C, int64_t ldc, bool add) {
  for (int64_t m = 0; m < M && !add; ++m) std::fill_n(C + m * ldc, N, Real(0));
}

// A tile of which C has only some rows and columns; the tile's rows are `width` numbers apart.
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

// kCount numbers, or fewer where fewer are left.
template <int64_t kCount, typename From, typename To>
[[gnu::always_inline]] inline void copy_up_to(const From* from, To* to, int64_t left) {
  if (left >= kCount) {
    copy_converted(from, to, kCount);
  } else {
    copy_converted(from, to, left);
  }
}

// Calls body(k, position) for k below depth and positions 0, step, 2 step ... below width. 8 k go through all
// positions together: what they read is still in cache at the next position, and they write whole lines
// there.
template <typename Body>
[[gnu::always_inline]] inline void for_few(int64_t depth, int64_t width, int64_t step, const Body& body) {
  constexpr int64_t kFew = 8;
  for (int64_t first = 0; first < depth; first += kFew) {
    const int64_t last = std::min(first + kFew, depth);
    for (int64_t position = 0; position < width; position += step) {
      for (int64_t k = first; k < last; ++k) body(k, position);
    }
  }
}

template <typename Real>
template <Order kOrder>
int64_t VectorTiles<Real>::left_size(int64_t M, int64_t K) {
  if (kOrder == Order::kRows) return round_up(K, kTileDepth) / kTileDepth * M * kStripStride;
  return round_up(M, shape().rows) * K;
}

template <typename Real>
int64_t VectorTiles<Real>::right_size(int64_t K, int64_t N) {
  return round_up(N, shape().columns) * K;
}

template <typename Real>
template <typename Scalar>
inline void VectorTiles<Real>::pack_left_row(const Scalar* row_K, int64_t m, int64_t M, int64_t K,
                                             Packed* packed) {
  for (int64_t k = 0; k < K; k += kTileDepth, packed += M * kStripStride) {
    copy_converted(row_K + k, packed + m * kStripStride, std::min(kTileDepth, K - k));
  }
}

template <typename Real>
template <typename Column>
void VectorTiles<Real>::pack_left_columns(const Column& column, int64_t M, int64_t K, Packed* packed) {
  run_with_registers([&]<typename Regs>(Regs) {
    constexpr int64_t kRows = Regs::kRows;
    for (int64_t first = 0; first < K; first += kTileDepth, packed += kTileDepth * round_up(M, kRows)) {
      const int64_t depth = std::min(kTileDepth, K - first);
      for_few(depth, M, kRows, [&](int64_t k, int64_t m) {
        copy_up_to<kRows>(column(first + k) + m, packed + m * depth + k * kRows, M - m);
      });
    }
  });
}

template <typename Real>
template <typename Row>
void VectorTiles<Real>::pack_right_rows(const Row& row, int64_t K, int64_t N, int64_t begin, int64_t end,
                                        Packed* packed) {
  run_with_registers([&]<typename Regs>(Regs) {
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

}  // namespace dtopp
