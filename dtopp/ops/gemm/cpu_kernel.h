// Shared by the CPU kernels that multiply matrices: tiles per dtype, packing of rows, per-thread buffers and
// sums of outer products.
#pragma once

#include <algorithm>
#include <array>

#include "dtopp/ops/core/bfloat16_loops.h"
#include "dtopp/ops/gemm/matrix_tiles.h"

namespace dtopp::ops {

// Multiplies packed bf16 matrices, with C in float, on CPUs that multiply bf16 (AMX or AVX512_BF16). It has
// the interface of VectorTiles (matrix_tiles.h).
//
// A is packed by rows. B is packed in panels of kPanel columns, and the numbers of two consecutive k lie side
// by side. K is padded with zeros to a multiple of 32. The rows of a strip of A are padded to a multiple of
// kUnit. oneDNN compiles a kernel per shape, and padding keeps the number of shapes small.
//
// multiply_finish passes C to the caller tile by tile. A tile has 128 x 64 floats (32 KiB), which the caller
// processes in the first-level cache.

// Multiplies with oneDNN's micro-kernels behind at::native::cpublas if the CPU has AMX, else with
// AVX512_BF16's dot products of pairs. All access to the hardware goes through this struct. Tests link a
// plain loop in its place and run the operators on any machine.
struct MatrixUnit {
  // Returns true if this machine has AMX or AVX512_BF16.
  static bool available();

  // C [M, ldc] = A B, or += if `add`. A [M, lda] is row-major. B [K / 2, ldb, 2] holds the numbers of two k
  // side by side. Strides are in numbers. M is a multiple of 16, N of 64, K of 32.
  static void multiply(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, bool add,
                       const c10::BFloat16* A, const c10::BFloat16* B, float* C);

  // Each thread calls this after its last product, because the AMX tile registers belong to the thread.
  static void release();
};

struct Bfloat16Tiles {
  using Real = float;
  using Packed = c10::BFloat16;
  static constexpr bool kFinishes = true;  // has multiply_finish
  static constexpr int64_t kLargestBlock = 256;
  static constexpr int64_t kStrip = 128, kPanel = kPanelColumns, kUnit = 16, kDeep = kPackedDepth;
  using Tile = std::array<Real, kStrip * kPanel>;

  static TileShape shape() { return {kUnit, kPanel}; }
  static void release() { MatrixUnit::release(); }

  static int64_t depth(int64_t K) { return round_up(K, kDeep); }

  // Distance between the rows of a packed left operand. It is one cache line longer than a row, because rows
  // a power of two apart share cache sets.
  static int64_t left_stride(int64_t K) { return depth(K) + kDeep; }

  template <Order kOrder>
  static int64_t left_size(int64_t M, int64_t K) {
    return round_up(M, kUnit) * left_stride(K);
  }
  static int64_t right_size(int64_t K, int64_t N) { return round_up(N, kPanel) * depth(K); }

  // Both orders are packed by rows.
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

  // Pads a packed row of K numbers with zeros.
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
    for (int64_t n = 0; n < columns && missing > 0; n += kPanel, packed += panel)
      std::fill_n(packed, missing, Packed(0));
  }

  static void pack_right_transposed(const Packed* transposed, int64_t stride, int64_t K, int64_t N,
                                    int64_t begin, int64_t end, Packed* packed,
                                    const NextRows& /*next*/ = {}) {
    for (int64_t n = begin; n < round_up(end, kPanel); n += kUnit) {
      const int64_t columns = std::clamp<int64_t>(N - n, 0, kUnit);
      bfloat16_loops().pack_right_transposed(transposed + std::min(n, N) * stride, stride, columns, K,
                                             packed + unit_at(n, K));
    }
  }

  // Columns of B if it interleaves two weights of N rows each (gate and up): half a panel of the first, then
  // half a panel of the second. A tile then holds both.
  static int64_t paired_columns(int64_t N) { return 2 * round_up(N, kPanel / 2); }

  // Packs the columns [begin, end) of that B.
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

  // C = A B as VectorTiles::multiply. It ignores `next`, because the micro-kernels prefetch by themselves.
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

  // Multiplies one strip and one panel. The strip has round_up(rows, kUnit) packed rows, and the results
  // beyond `rows` are not used.
  static void multiply_tile(const Packed* strip, const Packed* panel, int64_t rows, int64_t K, bool add,
                            Tile& tile) {
    MatrixUnit::multiply(round_up(rows, kUnit), kPanel, depth(K), left_stride(K), kPanel, kPanel, add, strip,
                         panel, tile.data());
  }

  // Calls finish(tile, m, rows, n, columns) for each tile of C. The tile's rows are kPanel numbers apart.
  //
  // Pass `spare`, memory for kStrip rows, if the rows behind the left operand belong to another thread. The
  // last strip is then copied to `spare` and padded there.
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
  // Returns the offset of column n, the first of a unit, in a packed right operand.
  static int64_t unit_at(int64_t n, int64_t K) { return n / kPanel * kPanel * depth(K) + n % kPanel * 2; }
};

// Returns the size of equal parts of `count`: a multiple of `unit` and at most `most`. `most` is a multiple
// of `unit` as well.
inline int64_t even_part(int64_t count, int64_t most, int64_t unit) {
  const int64_t parts = std::max<int64_t>(round_up(count, most) / most, 1);
  return std::max(round_up((count + parts - 1) / parts, unit), unit);
}

constexpr int64_t kSmallestShare = 32;  // fewer rows than this do not pay for a thread

// Returns the number of threads that `rows` rows are worth.
inline int64_t thread_shares(int64_t rows) {
  return std::clamp<int64_t>(rows / kSmallestShare, 1, at::get_num_threads());
}

// A buffer of equal parts, for example one per thread or one per expert of a group.
template <typename Number>
struct BufferParts {
  Tensor buffer;
  int64_t size;

  BufferParts(int64_t parts, int64_t numbers, const at::TensorOptions& options)
      : buffer(at::empty({parts * round_up(numbers, kLine)},
                         options.dtype(c10::CppTypeToScalarType<Number>::value))),
        size(round_up(numbers, kLine)) {}

  static constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(Number));  // parts begin on a cache line

  Number* of(int64_t part) const { return buffer.mutable_data_ptr<Number>() + part * size; }
};

// Packs the left operand of a product row by row. row(m) points to K numbers.
template <typename Tiles, typename Row>
void pack_left_rows(const Row& row, int64_t M, int64_t K, typename Tiles::Packed* packed) {
  run_widest([&] {
    for (int64_t m = 0; m < M; ++m) Tiles::pack_left_row(row(m), m, M, K, packed);
  });
}

// A thread's buffers for sum_outer_products. The static functions return their sizes in numbers, for a sum
// [M, N] over K.
template <typename Tiles>
struct OuterSumBuffers {
  typename Tiles::Packed *left, *right;
  typename Tiles::Real* sum;  // unused if the result is of type Real and is overwritten

  static int64_t left_size(int64_t /*K*/) {
    return Tiles::template left_size<Order::kColumns>(Tiles::kLargestSum, kTileDepth);
  }
  static int64_t right_size(int64_t /*K*/, int64_t N) { return Tiles::right_size(kTileDepth, N); }
  static int64_t sum_size(int64_t /*K*/, int64_t /*M*/, int64_t N) { return Tiles::kLargestSum * N; }
};

// The destination of a sum of outer products.
template <typename Out>
struct OuterSum {
  Out* out_MN;
  bool add = false;  // true: add to the old values

  [[gnu::always_inline]] void put(const auto* sums, Out* out, int64_t count) const {
    if (!add) return copy_converted(sums, out, count);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) store(out + i, load(out[i]) + sums[i]);
  }
};

// Rows [begin, end) of out_MN = sum over k < K of left(k)[m] right(k)[n]: the gradient of a weight, whose
// rows are the m.
template <typename Tiles, typename Out, typename Left, typename Right>
void sum_outer_products(const Left& left, const Right& right, int64_t K, int64_t begin, int64_t end,
                        int64_t N, const OuterSumBuffers<Tiles>& buffers, const OuterSum<Out>& to) {
  using Real = typename Tiles::Real;
  const int64_t step = even_part(end - begin, Tiles::kLargestSum, Tiles::shape().rows);
  for (int64_t m = begin; m < end; m += step) {
    const int64_t rows = std::min(step, end - m);
    Out* out = to.out_MN + m * N;
    Real* sum = buffers.sum;
    bool in_place = false;
    if constexpr (std::is_same_v<Out, Real>) {
      in_place = !to.add;
      if (in_place) sum = out;
    }
    if (K == 0) std::fill_n(sum, rows * N, Real(0));
    for (int64_t k = 0; k < K; k += kTileDepth) {
      const int64_t depth = std::min(kTileDepth, K - k);
      Tiles::pack_left_columns([&](int64_t i) { return left(k + i) + m; }, rows, depth, buffers.left);
      Tiles::pack_right_rows([&](int64_t i) { return right(k + i); }, depth, N, 0, N, buffers.right);
      Tiles::template multiply<Order::kColumns>(buffers.left, buffers.right, rows, N, depth, sum, N, k > 0);
    }
    if (!in_place) run_widest([&] { to.put(sum, out, rows * N); });
  }
}

template <>
struct OuterSumBuffers<Bfloat16Tiles> {
  using Tiles = Bfloat16Tiles;
  Tiles::Packed *left, *right;
  float* sum;  // the sum of the earlier parts, if K is longer than one part

  static constexpr int64_t kCallDepth = 512;   // K of one call of the matrix unit
  static constexpr int64_t kPartDepth = 2048;  // K that is packed at once; it bounds left and right

  static int64_t left_block() { return Tiles::left_size<Order::kColumns>(Tiles::kStrip, kCallDepth); }
  static int64_t right_block(int64_t N) { return Tiles::right_size(kCallDepth, N); }
  static int64_t blocks(int64_t K) { return round_up(std::min(K, kPartDepth), kCallDepth) / kCallDepth; }
  static int64_t left_size(int64_t K) { return blocks(K) * left_block(); }
  static int64_t right_size(int64_t K, int64_t N) { return blocks(K) * right_block(N); }
  static int64_t sum_size(int64_t K, int64_t M, int64_t N) { return K > kPartDepth ? M * N : 0; }

  // Calls body(block, first k, depth) for each matrix-unit call of a part.
  template <typename Body>
  static void for_calls(int64_t part_depth, const Body& body) {
    for (int64_t k = 0; k < part_depth; k += kCallDepth)
      body(k / kCallDepth, k, std::min(kCallDepth, part_depth - k));
  }
};

// The bf16 version. It packs B along a part of K once for all rows, and A one strip of rows at a time. A tile
// of the result is accumulated in the first-level cache and is rounded or added from there.
template <typename Out, typename Left, typename Right>
void sum_outer_products(const Left& left, const Right& right, int64_t K, int64_t begin, int64_t end,
                        int64_t N, const OuterSumBuffers<Bfloat16Tiles>& buffers, const OuterSum<Out>& to) {
  using Tiles = Bfloat16Tiles;
  if (K == 0 && !to.add) std::fill_n(to.out_MN + begin * N, (end - begin) * N, Out(0));
  alignas(64) Tiles::Tile tile;
  for (int64_t part = 0; part < K; part += buffers.kPartDepth) {
    const int64_t part_depth = std::min(buffers.kPartDepth, K - part);
    const bool last = part + part_depth == K;
    buffers.for_calls(part_depth, [&](int64_t block, int64_t k, int64_t depth) {
      Tiles::pack_right_rows([&](int64_t i) { return right(part + k + i); }, depth, N, 0, N,
                             buffers.right + block * buffers.right_block(N));
    });
    for (int64_t m = begin; m < end; m += Tiles::kStrip) {
      const int64_t rows = std::min(Tiles::kStrip, end - m);
      buffers.for_calls(part_depth, [&](int64_t block, int64_t k, int64_t depth) {
        Tiles::pack_left_columns([&](int64_t i) { return left(part + k + i) + m; }, rows, depth,
                                 buffers.left + block * buffers.left_block());
      });
      for (int64_t n = 0; n < N; n += Tiles::kPanel) {
        const int64_t columns = std::min(Tiles::kPanel, N - n);
        const auto sum = [&](int64_t i) { return buffers.sum + (m - begin + i) * N + n; };
        const auto row = [&](int64_t i) { return tile.data() + i * Tiles::kPanel; };
        for (int64_t i = 0; i < rows && part > 0; ++i) std::copy_n(sum(i), columns, row(i));
        buffers.for_calls(part_depth, [&](int64_t block, int64_t k, int64_t depth) {
          Tiles::multiply_tile(buffers.left + block * buffers.left_block(),
                               buffers.right + block * buffers.right_block(N) + n * Tiles::depth(depth), rows,
                               depth, part + k > 0, tile);
        });
        for (int64_t i = 0; i < rows && !last; ++i) std::copy_n(row(i), columns, sum(i));
        if (!last) continue;
        const auto out = [&](int64_t i) { return to.out_MN + (m + i) * N + n; };
        if constexpr (std::is_same_v<Out, c10::BFloat16>) {
          for (int64_t i = 0; i < rows; ++i) bfloat16_loops().convert(row(i), out(i), columns);
        } else {
          run_widest([&] {
            for (int64_t i = 0; i < rows; ++i) to.put(row(i), out(i), columns);
          });
        }
      }
    }
  }
}

// Calls `body` with a value of the tensor's type, float or bfloat16.
template <typename Body>
void dispatch_scalar(const Tensor& x, const Body& body) {
  if (x.scalar_type() == at::kFloat) return body(float{});
  body(c10::BFloat16{});
}

// Calls `body` with a value of the tensor's type and the tiles that multiply this type.
template <typename Body>
void dispatch(const Tensor& x_TD, const Body& body) {
  if (x_TD.scalar_type() == at::kDouble) return body(double{}, VectorTiles<double>{});
  if (x_TD.scalar_type() == at::kFloat) return body(float{}, VectorTiles<float>{});
  if (MatrixUnit::available()) return body(c10::BFloat16{}, Bfloat16Tiles{});
  body(c10::BFloat16{}, VectorTiles<float>{});
}

// Returns the tensor without autograd, contiguous. Pool threads have their own autograd state, so the tensors
// that they read must not require gradients.
inline Tensor plain(const Tensor& tensor) { return tensor.detach().contiguous(); }

}  // namespace dtopp::ops
