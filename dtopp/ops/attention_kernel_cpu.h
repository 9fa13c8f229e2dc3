// What the forward and backward pass of causal attention on the CPU share: a head's rows, its packed keys and
// values.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "dtopp/ops/attention_cpu.h"
#include "dtopp/ops/cpu_kernel.h"

namespace dtopp {

using AttentionTiles = VectorTiles<float>;

constexpr int64_t kKeys = kTileDepth;  // of a block: as many as one block of a product is deep
constexpr int64_t kQueries = 126;      // of a block; whole strips of every instruction set

static_assert(kWidestHead <= kTileDepth, "a packed block of keys is one block deep");

// The rows of one head.
template <typename Scalar>
struct HeadRows {
  Scalar* data;
  int64_t stride;

  Scalar* row(int64_t n) const { return data + n * stride; }
};

// Head `index` of x_BHLK, counted through all batches, whose data begin at `data`.
template <typename Scalar>
HeadRows<Scalar> head_at(Scalar* data, const at::Tensor& x_BHLK, int64_t index) {
  const int64_t batch = index / x_BHLK.size(1), head = index % x_BHLK.size(1);
  return {data + batch * x_BHLK.stride(0) + head * x_BHLK.stride(1), x_BHLK.stride(2)};
}

template <typename Scalar>
HeadRows<const Scalar> head_of(const at::Tensor& x_BHLK, int64_t index) {
  return head_at(x_BHLK.const_data_ptr<Scalar>(), x_BHLK, index);
}

template <typename Scalar>
HeadRows<Scalar> mutable_head_of(const at::Tensor& x_BHLK, int64_t index) {
  return head_at(x_BHLK.mutable_data_ptr<Scalar>(), x_BHLK, index);
}

struct Extent {
  int64_t begin, end;

  int64_t size() const { return end - begin; }
};

// The keys of a block that the last of the queries sees.
inline Extent seen_keys(int64_t block, const Extent& queries) {
  return {block * kKeys, std::min((block + 1) * kKeys, queries.end)};
}

// Rows of a head packed as the right side of a product, a block of them after another; a block that the
// diagonal cuts is packed again, as deep as it is seen.
template <typename Scalar>
class PackedRows {
 public:
  PackedRows(int64_t block_rows, int64_t length, int64_t width)
      : block_rows_(block_rows),
        width_(width),
        size_(round_up(AttentionTiles::right_size(block_rows, width), 16)),
        buffer_(at::empty({((length + block_rows - 1) / block_rows + 1) * size_}, at::kFloat)) {}

  void pack(const HeadRows<const Scalar>& rows, int64_t length) {
    rows_ = rows;
    length_ = length;
    for (int64_t begin = 0; begin < length; begin += block_rows_)
      pack_into({begin, std::min(begin + block_rows_, length)}, block(begin / block_rows_));
  }

  // The rows of a block up to `extent`'s end, from its beginning.
  const float* get(const Extent& extent) {
    const int64_t index = extent.begin / block_rows_;
    if (extent.end == std::min((index + 1) * block_rows_, length_)) return block(index);
    float* last = block((length_ + block_rows_ - 1) / block_rows_);
    pack_into(extent, last);
    return last;
  }

 private:
  float* block(int64_t index) const { return buffer_.mutable_data_ptr<float>() + index * size_; }
  void pack_into(const Extent& extent, float* packed) const {
    AttentionTiles::pack_right_rows([&](int64_t n) { return rows_.row(extent.begin + n); }, extent.size(),
                                    width_, 0, width_, packed);
  }

  int64_t block_rows_, width_, size_, length_ = 0;
  at::Tensor buffer_;
  HeadRows<const Scalar> rows_{};
};

// Rows of a head packed as the transposed right side, a block of kKeys after another: for scores.
template <typename Scalar>
class PackedColumns {
 public:
  PackedColumns(int64_t length, int64_t width)
      : width_(width),
        size_(round_up(AttentionTiles::right_size(width, kKeys), 16)),
        buffer_(at::empty({(length + kKeys - 1) / kKeys * size_}, at::kFloat)) {}

  void pack(const HeadRows<const Scalar>& rows, int64_t length) {
    for (int64_t begin = 0; begin < length; begin += kKeys) {
      const int64_t count = std::min(kKeys, length - begin);
      AttentionTiles::pack_right_transposed(rows.row(begin), rows.stride, width_, count, 0, count,
                                            block(begin / kKeys));
    }
  }
  float* block(int64_t index) const { return buffer_.mutable_data_ptr<float>() + index * size_; }

 private:
  int64_t width_, size_;
  at::Tensor buffer_;
};

template <typename Scalar>
void pack_queries(const HeadRows<const Scalar>& rows, const Extent& queries, int64_t width, float* packed) {
  pack_left_rows<AttentionTiles>([&](int64_t n) { return rows.row(queries.begin + n); }, queries.size(),
                                 width, packed);
}

inline int64_t left_rows_size(int64_t depth) {
  return AttentionTiles::left_size<Order::kRows>(kQueries, depth);
}

// A buffer of floats.
struct Workspace : BufferParts<float> {
  explicit Workspace(int64_t numbers) : BufferParts(1, numbers, at::TensorOptions()) {}
  float* data() const { return of(0); }
};

// [B, H, L, K] over the memory of [B, L, H, K]: what the projections around attention read.
inline at::Tensor empty_heads(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options()).transpose(1, 2);
}

// Calls body(first, last) with each thread's heads.
template <typename Body>
void for_heads(const at::Tensor& q, const Body& body) {
  at::parallel_for(0, q.size(0) * q.size(1), 1, body);
}

inline at::Tensor with_dense_rows(const at::Tensor& x) {
  return (x.stride(3) == 1 ? x : x.contiguous()).detach();
}

}  // namespace dtopp
