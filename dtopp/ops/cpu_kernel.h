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
