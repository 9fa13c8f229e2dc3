// The interface of VectorTiles (matrix_tiles.h) for processors that multiply bfloat16 (AMX, AVX512_BF16):
// operands in bfloat16, C in float. A is packed row by row, B in panels of kPanel columns whose numbers lie
// in pairs of k. K is filled up to a multiple of 32 with zeros on both sides and strips of A are multiplied
// in whole units of kUnit rows: oneDNN compiles a kernel for each shape it is asked for, so few of them are.
//
// A product can also be taken tile by tile (multiply_finish): 128 x 64 floats, 32 KiB, which the caller turns
// into what it wants before they leave the first-level cache.
#pragma once

#include <array>

#include "dtopp/ops/core/bfloat16_loops.h"
#include "dtopp/ops/gemm/matrix_tiles.h"

namespace dtopp {

// With AMX oneDNN's micro-kernels behind at::native::cpublas, else AVX512_BF16's products of pairs. What
// stands here is all of the hardware that these tiles see: tests link a plain loop in its place and run the
// operators with it on any machine.
struct MatrixUnit {
  // Whether this machine has one.
  static bool available();

  // C [M, ldc] = A B, or += where `add`. A [M, lda] row by row; B [K / 2, ldb, 2], the numbers of two k in
  // pairs. Strides are in numbers; M is a multiple of 16, N of 64, K of 32.
  static void multiply(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, bool add,
                       const c10::BFloat16* A, const c10::BFloat16* B, float* C);

  // To be called by each thread after its last product: the tile registers are its own.
  static void release();
};

struct Bfloat16Tiles {
  using Real = float;
  using Packed = c10::BFloat16;
  static constexpr bool kFinishes = true;  // multiply_finish is there
  static constexpr int64_t kLargestBlock = 256;
  static constexpr int64_t kStrip = 128, kPanel = kPanelColumns, kUnit = 16, kDeep = kPackedDepth;
  using Tile = std::array<Real, kStrip * kPanel>;

  static TileShape shape() { return {kUnit, kPanel}; }
  static void release() { MatrixUnit::release(); }

  static int64_t depth(int64_t K) { return round_up(K, kDeep); }

  // Between the rows of a packed left side: a line more than it needs, since rows a power of two apart would
  // share cache sets.
  static int64_t left_stride(int64_t K) { return depth(K) + kDeep; }

  template <Order kOrder>
  static int64_t left_size(int64_t M, int64_t K) {
    return round_up(M, kUnit) * left_stride(K);
  }
  static int64_t right_size(int64_t K, int64_t N) { return round_up(N, kPanel) * depth(K); }

  // Either order is packed row by row.
  template <typename Scalar>
  static void pack_left_row(const Scalar* row_K, int64_t m, int64_t /*M*/, int64_t K, Packed* packed) {
    Packed* to = packed + m * left_stride(K);
    if constexpr (std::is_same_v<Scalar, Packed>) {
      std::copy_n(row_K, K, to);
    } else {
      bfloat16_loops().convert(row_K, to, K);
    }
    fill_depth(to, K);
  }

  // A row of a packed left side whose first K numbers are there.
  static void fill_depth(Packed* row, int64_t K) { std::fill(row + K, row + depth(K), Packed(0)); }

  template <typename Column>
  static void pack_left_columns(const Column& column, int64_t M, int64_t K, Packed* packed) {
    const Bfloat16Loops& loops = bfloat16_loops();
    std::array<const Packed*, kDeep> columns{};
    for (int64_t k = 0; k < K; k += kDeep) {
      const int64_t present = std::min(kDeep, K - k);
      for (int64_t i = 0; i < present; ++i) columns[i] = column(k + i);
      loops.pack_left_columns(columns.data(), present, M, packed + k, left_stride(K));
    }
  }

  template <typename Row>
  static void pack_right_rows(const Row& row, int64_t K, int64_t N, int64_t begin, int64_t end,
                              Packed* packed) {
    const Bfloat16Loops& loops = bfloat16_loops();
    const int64_t panel = kPanel * depth(K), columns = std::min(round_up(end, kPanel), N) - begin;
    packed += begin * depth(K);
    for (int64_t k = 0; k < K; k += 2, packed += 2 * kPanel) {
      const Packed* odd = k + 1 < K ? row(k + 1) + begin : nullptr;
      loops.pack_right_rows(row(k) + begin, odd, columns, packed, panel);
    }
    const int64_t missing = (depth(K) - round_up(K, 2)) * kPanel;
    for (int64_t n = 0; n < columns && missing > 0; n += kPanel, packed += panel) {
      std::fill_n(packed, missing, Packed(0));
    }
  }

  static void pack_right_transposed(const Packed* transposed, int64_t stride, int64_t K, int64_t N,
                                    int64_t begin, int64_t end, Packed* packed) {
    for (int64_t n = begin; n < round_up(end, kPanel); n += kUnit) {
      const int64_t columns = std::clamp<int64_t>(N - n, 0, kUnit);
      bfloat16_loops().pack_right_transposed(transposed + std::min(n, N) * stride, stride, columns, K,
                                             packed + unit_at(n, K));
    }
  }

  // B's columns where it is made of two weights of N rows each (gate and up): half a panel of the one, half a
  // panel of the other, so that a tile has both.
  static int64_t paired_columns(int64_t N) { return 2 * round_up(N, kPanel / 2); }

  // Columns [begin, end) of these.
  static void pack_right_paired(const Packed* first, const Packed* second, int64_t stride, int64_t K,
                                int64_t N, int64_t begin, int64_t end, Packed* packed) {
    constexpr int64_t kHalf = kPanel / 2;
    for (int64_t n = begin; n < end; n += kUnit) {
      const int64_t row = n / kPanel * kHalf + n % kHalf;
      const Packed* from = n % kPanel < kHalf ? first : second;
      bfloat16_loops().pack_right_transposed(from + std::min(row, N) * stride, stride,
                                             std::clamp<int64_t>(N - row, 0, kUnit), K,
                                             packed + unit_at(n, K));
    }
  }

  // C = A B as VectorTiles::multiply. Nothing is brought to the cache: the micro-kernels do.
  template <Order kOrder>
  static void multiply(const Packed* left, const Packed* right, int64_t M, int64_t N, int64_t K, Real* C,
                       int64_t ldc, bool add, const NextRows& /*next*/ = {}) {
    if (K == 0) return clear_unless_added(M, N, C, ldc, add);
    alignas(64) Tile tile;
    for (int64_t m = 0; m < M; m += kStrip) {
      const int64_t rows = std::min(kStrip, M - m);
      for (int64_t n = 0; n < N; n += kPanel) {
        const int64_t columns = std::min(kPanel, N - n);
        const Packed *strip = left + m * left_stride(K), *panel = right + n * depth(K);
        Real* to = C + m * ldc + n;
        if (rows % kUnit == 0 && columns == kPanel) {
          MatrixUnit::multiply(rows, kPanel, depth(K), left_stride(K), kPanel, ldc, add, strip, panel, to);
        } else {
          multiply_tile(strip, panel, rows, K, false, tile);
          put_tile(tile.data(), kPanel, rows, columns, to, ldc, add);
        }
      }
    }
  }

  // The product of one strip and one panel. The strip's rows fill whole units, of which `rows` matter.
  static void multiply_tile(const Packed* strip, const Packed* panel, int64_t rows, int64_t K, bool add,
                            Tile& tile) {
    MatrixUnit::multiply(round_up(rows, kUnit), kPanel, depth(K), left_stride(K), kPanel, kPanel, add, strip,
                         panel, tile.data());
  }

  // C a tile at a time: finish(tile, m, rows, n, columns), the tile's rows kPanel numbers apart. Where the
  // left side has no room for whole units, what lies behind its last row being another thread's, the last
  // strip is multiplied from `spare`, which has room for kStrip rows.
  template <typename Finish>
  static void multiply_finish(const Packed* left, const Packed* right, int64_t M, int64_t N, int64_t K,
                              const Finish& finish, Packed* spare = nullptr) {
    alignas(64) Tile tile;
    for (int64_t m = 0; m < M; m += kStrip) {
      const int64_t rows = std::min(kStrip, M - m);
      const Packed* strip = left + m * left_stride(K);
      if (spare != nullptr && rows % kUnit != 0) {
        std::copy_n(strip, rows * left_stride(K), spare);
        strip = spare;
      }
      if (K == 0) tile.fill(0);
      for (int64_t n = 0; n < N; n += kPanel) {
        if (K > 0) multiply_tile(strip, right + n * depth(K), rows, K, false, tile);
        finish(tile.data(), m, rows, n, std::min(kPanel, N - n));
      }
    }
  }

 private:
  // Where column n, the first of a unit, is in a packed right side.
  static int64_t unit_at(int64_t n, int64_t K) { return n / kPanel * kPanel * depth(K) + n % kPanel * 2; }
};

}  // namespace dtopp
