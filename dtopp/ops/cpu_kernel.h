// What the CPU kernels that multiply share: the tiles for a tensor's type, packing of rows, memory in parts.
#pragma once

#include <algorithm>

#include "dtopp/ops/matrix_tiles_bf16.h"
#include "dtopp/ops/torch.h"

namespace dtopp {

// The size of equal parts of a count, at most `most` each, whole multiples of `unit`, which divides `most`.
inline int64_t even_part(int64_t count, int64_t most, int64_t unit) {
  const int64_t parts = std::max<int64_t>(round_up(count, most) / most, 1);
  return std::max(round_up((count + parts - 1) / parts, unit), unit);
}

constexpr int64_t kSmallestShare = 32;  // fewer rows than this do not repay a thread

// How many parts of `rows` rows are worth a thread each.
inline int64_t thread_shares(int64_t rows) {
  return std::clamp<int64_t>(rows / kSmallestShare, 1, at::get_num_threads());
}

// A buffer in parts of equal size: one for each thread, say, or each expert of a group.
template <typename Number>
struct BufferParts {
  at::Tensor buffer;
  int64_t size;

  BufferParts(int64_t parts, int64_t numbers, const at::TensorOptions& options)
      : buffer(at::empty({parts * round_up(numbers, 16)},
                         options.dtype(c10::CppTypeToScalarType<Number>::value))),
        size(round_up(numbers, 16)) {}

  Number* of(int64_t part) const { return buffer.mutable_data_ptr<Number>() + part * size; }
};

// The left side of a product, row by row: row(m) points to K numbers.
template <typename Tiles, typename Row>
void pack_left_rows(const Row& row, int64_t M, int64_t K, typename Tiles::Packed* packed) {
  run_widest([&] {
    for (int64_t m = 0; m < M; ++m) Tiles::pack_left_row(row(m), m, M, K, packed);
  });
}

// A thread's room for a sum of outer products whose rows are at most `width` numbers.
template <typename Tiles>
struct OuterSumBuffers {
  typename Tiles::Packed *left, *right;
  typename Tiles::Real* sum;  // unused where the result is of its type

  static int64_t left_size() {
    return Tiles::template left_size<Order::kColumns>(Tiles::kLargestSum, kTileDepth);
  }
  static int64_t right_size(int64_t width) { return Tiles::right_size(kTileDepth, width); }
};

// Rows [begin, end) of out_MN = the sum over k below K of left(k)[m] right(k)[n]: a weight's gradient over
// its rows.
template <typename Tiles, typename Scalar, typename Left, typename Right>
void sum_outer_products(const Left& left, const Right& right, int64_t K, int64_t begin, int64_t end,
                        int64_t N, const OuterSumBuffers<Tiles>& buffers, Scalar* out_MN) {
  using Real = typename Tiles::Real;
  const int64_t step = even_part(end - begin, Tiles::kLargestSum, Tiles::shape().rows);
  for (int64_t m = begin; m < end; m += step) {
    const int64_t rows = std::min(step, end - m);
    Scalar* out = out_MN + m * N;
    Real* sum = buffers.sum;
    if constexpr (std::is_same_v<Scalar, Real>) sum = out;
    if (K == 0) std::fill_n(sum, rows * N, Real(0));
    for (int64_t k = 0; k < K; k += kTileDepth) {
      const int64_t depth = std::min(kTileDepth, K - k);
      Tiles::pack_left_columns([&](int64_t i) { return left(k + i) + m; }, rows, depth, buffers.left);
      Tiles::pack_right_rows([&](int64_t i) { return right(k + i); }, depth, N, 0, N, buffers.right);
      Tiles::template multiply<Order::kColumns>(buffers.left, buffers.right, rows, N, depth, sum, N, k > 0);
    }
    if constexpr (!std::is_same_v<Scalar, Real>) {
      run_widest([&] { copy_converted(sum, out, rows * N); });
    }
  }
}

// Calls body with the tensor's type, float or bfloat16.
template <typename Body>
void dispatch_scalar(const at::Tensor& x, const Body& body) {
  if (x.scalar_type() == at::kFloat) return body(float{});
  body(c10::BFloat16{});
}

// Calls body with the tensors' type and the tiles that multiply it.
template <typename Body>
void dispatch(const at::Tensor& x_TD, const Body& body) {
  if (x_TD.scalar_type() == at::kDouble) return body(double{}, VectorTiles<double>{});
  if (x_TD.scalar_type() == at::kFloat) return body(float{}, VectorTiles<float>{});
  if (BrgemmKernel::available()) return body(c10::BFloat16{}, Bfloat16Tiles<BrgemmKernel>{});
  body(c10::BFloat16{}, VectorTiles<float>{});
}

// Threads of the pool have their own autograd state: what they read must not require gradients.
inline at::Tensor plain(const at::Tensor& tensor) { return tensor.detach().contiguous(); }

}  // namespace dtopp
