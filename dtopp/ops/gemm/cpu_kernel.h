// Shared by the CPU kernels that multiply matrices: tiles per dtype, packing of rows, per-thread buffers and
// sums of outer products.
#pragma once

#include <algorithm>

#include "dtopp/ops/core/torch.h"
#include "dtopp/ops/gemm/matrix_tiles_bf16.h"

namespace dtopp::ops {

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
  at::Tensor buffer;
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
    for (int64_t k = 0; k < part_depth; k += kCallDepth) {
      body(k / kCallDepth, k, std::min(kCallDepth, part_depth - k));
    }
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
void dispatch_scalar(const at::Tensor& x, const Body& body) {
  if (x.scalar_type() == at::kFloat) return body(float{});
  body(c10::BFloat16{});
}

// Calls `body` with a value of the tensor's type and the tiles that multiply this type.
template <typename Body>
void dispatch(const at::Tensor& x_TD, const Body& body) {
  if (x_TD.scalar_type() == at::kDouble) return body(double{}, VectorTiles<double>{});
  if (x_TD.scalar_type() == at::kFloat) return body(float{}, VectorTiles<float>{});
  if (MatrixUnit::available()) return body(c10::BFloat16{}, Bfloat16Tiles{});
  body(c10::BFloat16{}, VectorTiles<float>{});
}

// Returns the tensor without autograd, contiguous. Pool threads have their own autograd state, so the tensors
// that they read must not require gradients.
inline at::Tensor plain(const at::Tensor& tensor) { return tensor.detach().contiguous(); }

}  // namespace dtopp::ops
