// The interface of VectorTiles for processors with a matrix unit for bfloat16 (AMX): operands in bfloat16, C
// in float. Each strip and panel is multiplied along all of K at once by a kernel made for its shape, so that
// shapes are kept few: strips are cut at multiples of kUnit rows.
#pragma once

#include <array>

#include "dtopp/ops/matrix_tiles.h"

namespace dtopp {

// oneDNN's micro-kernels. A [M, lda] row by row; B the numbers of two rows in pairs: [K / 2, ldb, 2].
struct BrgemmKernel {
  // Whether this machine runs them.
  static bool available();
  static void multiply(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, bool add,
                       const c10::BFloat16* A, const c10::BFloat16* B, float* C);
  // To be called by each thread after its last product: the tile registers are its own.
  static void release();
};

template <typename Kernel>
struct Bfloat16Tiles {
  using Real = float;
  using Packed = c10::BFloat16;
  static constexpr int64_t kLargestBlock = 256;
  static constexpr int64_t kLargestSum = 384;
  static constexpr int64_t kStrip = 128, kPanel = 64, kUnit = 16;

  static TileShape shape() { return {kUnit, kPanel}; }
  static void release() { Kernel::release(); }

  template <Order kOrder>
  static int64_t left_size(int64_t M, int64_t K) {
    return round_up(M, kUnit) * round_up(K, 2);
  }
  static int64_t right_size(int64_t K, int64_t N) { return round_up(N, kPanel) * round_up(K, 2); }

  // Both orders are packed row by row.
  template <typename Scalar>
  [[gnu::always_inline]] static void pack_left_row(const Scalar* row_K, int64_t m, int64_t /*M*/, int64_t K,
                                                   Packed* packed) {
    const int64_t stride = round_up(K, 2);
    copy_converted(row_K, packed + m * stride, K);
    if (stride > K) packed[m * stride + K] = 0;
  }

  template <typename Column>
  static void pack_left_columns(const Column& column, int64_t M, int64_t K, Packed* packed) {
    const int64_t stride = round_up(K, 2);
    run_widest([&] {
      for (int64_t first = 0; first < stride; first += kUnit) {
        const int64_t last = std::min(first + kUnit, stride);
        for (int64_t k = first; k < last; ++k) {
          if (k == K) {
            for (int64_t m = 0; m < M; ++m) packed[m * stride + k] = 0;
            continue;
          }
          const auto* from = column(k);
          for (int64_t m = 0; m < M; ++m) store(packed + m * stride + k, load(from[m]));
        }
      }
    });
  }

  template <typename Row>
  static void pack_right_rows(const Row& row, int64_t K, int64_t N, int64_t begin, int64_t end,
                              Packed* packed) {
    const int64_t pairs = round_up(K, 2) / 2;
    run_widest([&] {
      for (int64_t pair = 0; pair < pairs; ++pair) {
        const auto *even = row(2 * pair), *odd = 2 * pair + 1 < K ? row(2 * pair + 1) : nullptr;
        for (int64_t n = begin; n < end; n += kPanel) {
          Packed* to = packed + n * 2 * pairs + pair * 2 * kPanel;
          const int64_t count = std::min(kPanel, N - n);
          for (int64_t i = 0; i < count; ++i) {
            store(to + 2 * i, load(even[n + i]));
            store(to + 2 * i + 1, odd == nullptr ? 0.0F : load(odd[n + i]));
          }
          std::fill(to + 2 * count, to + 2 * kPanel, Packed(0));
        }
      }
    });
  }

  template <typename Scalar>
  static void pack_right_transposed(const Scalar* transposed, int64_t stride, int64_t K, int64_t N,
                                    int64_t begin, int64_t end, Packed* packed) {
    const int64_t pairs = round_up(K, 2) / 2;
    run_widest([&] {
      for (int64_t n = begin; n < end; n += kPanel) {
        for (int64_t i = 0; i < kPanel; ++i) {
          Packed* to = packed + n * 2 * pairs + 2 * i;
          for (int64_t k = 0; k < 2 * pairs; ++k) {
            const bool inside = n + i < N && k < K;
            store(to + k / 2 * 2 * kPanel + k % 2, inside ? load(transposed[(n + i) * stride + k]) : 0.0F);
          }
        }
      }
    });
  }

  template <Order kOrder>
  static void multiply(const Packed* left, const Packed* right, int64_t M, int64_t N, int64_t K, Real* C,
                       int64_t ldc, bool add, const NextRows& /*next*/ = {}) {
    const int64_t depth = round_up(K, 2);
    if (K == 0) return clear_unless_added(M, N, C, ldc, add);
    for (int64_t m = 0; m < M; m += kStrip) {
      const int64_t rows = std::min(kStrip, M - m);
      for (int64_t n = 0; n < N; n += kPanel) {
        const int64_t columns = std::min(kPanel, N - n);
        const Packed *strip = left + m * depth, *panel = right + n * depth;
        if (rows % kUnit == 0 && columns == kPanel) {
          Kernel::multiply(rows, kPanel, depth, depth, kPanel, ldc, add, strip, panel, C + m * ldc + n);
        } else {
          multiply_edge(strip, panel, rows, columns, depth, C + m * ldc + n, ldc, add);
        }
      }
    }
  }

 private:
  static void multiply_edge(const Packed* strip, const Packed* panel, int64_t rows, int64_t columns,
                            int64_t depth, Real* C, int64_t ldc, bool add) {
    alignas(64) std::array<Real, kStrip * kPanel> tile;
    Kernel::multiply(round_up(rows, kUnit), kPanel, depth, depth, kPanel, kPanel, false, strip, panel,
                     tile.data());
    put_tile(tile.data(), kPanel, rows, columns, C, ldc, add);
  }
};

}  // namespace dtopp
