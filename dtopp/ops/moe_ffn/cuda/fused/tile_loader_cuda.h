// Loads the operands of a tile (tiles_cuda.h) into shared memory, in the layout of cuda_wgmma.h.
//
// On Hopper one warp group loads for two groups that multiply 128 x 256 x 64 in 1,024 cycles at best.
// Addresses must therefore be cheap to compute.
#pragma once

#include "dtopp/ops/moe_ffn/cuda/fused/cuda_async.h"
#include "dtopp/ops/moe_ffn/cuda/fused/cuda_wgmma.h"
#include "dtopp/ops/moe_ffn/cuda/fused/tiles_cuda.h"

namespace dtopp::ops::cuda {

constexpr int kTileDepth = 64;  // of the sum per step: 128 bytes of bf16

// Addresses of rows at equal distances. The address of row i takes one instruction, 64 + 32 x 32 bits, also
// for an i from a table.
struct RowAddresses {
  const Bfloat16* first;
  uint32_t bytes;  // distance between rows

  __device__ RowAddresses(const Bfloat16* first, int64_t numbers)
      : first(first),
        bytes(computed_anew(static_cast<uint32_t>(numbers) * static_cast<uint32_t>(sizeof(Bfloat16)))) {}
  __device__ const void* operator[](uint32_t i) const {
    return reinterpret_cast<const char*>(first) + static_cast<uint64_t>(bytes) * i;
  }
};

// The source of a copy. If `there` is false, zeros are loaded instead.
struct Source {
  const void* from;
  bool there;
};

// Loads kTileDepth columns of kRows rows. row_of(i) is the i-th row of the thread, row thread / 8 + i
// kThreads / 8, from the thread's own chunk of columns on.
template <int kRows, int kThreads, typename RowOf>
__device__ void load_rows(uint32_t to, int thread, const RowOf& row_of) {
  constexpr int kChunks = kTileDepth / kChunk, kStep = kThreads / kChunks;
  static_assert(kStep % 8 == 0);  // all rows of a thread have its chunk at the same position
  to += swizzled(thread / kChunks, thread % kChunks);
#pragma unroll
  for (int i = 0; i < kRows / kStep; ++i) {
    const Source row = row_of(i);
    copy_async(to + i * kStep * kSwizzledRowBytes, row.from, row.there ? 16 : 0);
  }
}

// The rows whose chunks a thread loads when it loads kColumns columns of kTileDepth rows: first_row + i
// kStep.
template <int kColumns, int kThreads>
struct ColumnRows {
  static constexpr int kChunks = kColumns / kChunk, kStep = kThreads / kChunks, kRows = kTileDepth / kStep;

  static __device__ int first_row(int thread) { return thread / kChunks; }
  static __device__ int64_t first_number(int thread) { return thread % kChunks * kChunk; }
};

// Loads kColumns columns of kTileDepth rows, in consecutive blocks of 64 columns. row_of(i) is the i-th row
// of the thread, from the thread's own chunk of columns on.
template <int kColumns, int kThreads, typename RowOf>
__device__ void load_columns(uint32_t to, int thread, const RowOf& row_of) {
  using Own = ColumnRows<kColumns, kThreads>;
  constexpr int kBlockChunks = kSwizzledRowBytes / 16;
  static_assert((Own::kStep & (Own::kStep - 1)) == 0);
  const int chunk = thread % Own::kChunks;
  to += chunk / kBlockChunks * (kTileDepth * kSwizzledRowBytes) +
        swizzled(Own::first_row(thread), chunk % kBlockChunks);
#pragma unroll
  for (int i = 0; i < Own::kRows; ++i) {
    const Source row = row_of(i);
    // The step i kStep sets only bits of the row number (modulo 8) that are clear in the first row. XOR
    // therefore applies the swizzle.
    const uint32_t address = (to ^ (i * Own::kStep % 8 * 16)) + i * Own::kStep * kSwizzledRowBytes;
    copy_async(address, row.from, row.there ? 16 : 0);
  }
}

// Returns the weight's row that is stored as row `row` of the right operand in shared memory. It permutes
// bits of the row number below 32, so that a lane's output columns are neighbors (Form::kInOrder).
__host__ __device__ constexpr int weight_row(int row) {
  return row / 32 * 32 + row / 2 % 4 * 8 + row / 8 % 4 * 2 + row % 2;
}

// Loads one thread's part of a tile's operands, in consecutive steps of kTileDepth. If columns are paired,
// each kSlice columns of the right operand consist of two halves. The first half comes from the first F
// columns, the second from the next F.
template <typename Form, bool kPaired, int kTileRows, int kTileColumns, int kSlice, int kThreads>
class TileLoader {
 public:
  static constexpr uint32_t kLeftBytes = kTileRows * kTileDepth * sizeof(Bfloat16);
  static constexpr uint32_t kStageBytes = kLeftBytes + kTileColumns * kTileDepth * sizeof(Bfloat16);

  __device__ TileLoader(const Gemm& in, const Tile& tile, int thread)
      : in_(in), tile_(tile), thread_(thread) {
    if constexpr (Form::kOverPairs) {
      find_rows(tile.depth_begin);
    } else {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int row = thread / kRowChunks + i * kRowStep;
        rows_[i] = row < tile.rows ? static_cast<int32_t>(row_of_pair(in.left, tile.first_row + row)) : 0;
      }
    }
  }

  // `stage`: kStageBytes of shared memory, the left operand before the right one.
  __device__ void load(uint32_t stage, int64_t depth) const {
    if constexpr (Form::kOverPairs) {
      load_pairs<Gathers::kLeft, kTileRows>(stage, in_.left, tile_.first_row, in_.rows, depth);
      load_pairs<Gathers::kRight, kTileColumns>(stage + kLeftBytes, in_.right, tile_.first_column,
                                                in_.columns, depth);
    } else {
      const int64_t column = depth + thread_ % kRowChunks * kChunk;
      const bool inside = column < in_.depth;
      const RowAddresses left(in_.left.data + column, in_.left.width);
      const int there = inside ? tile_.rows - thread_ / kRowChunks : 0;
      load_rows<kTileRows, kThreads>(stage, thread_, [&](int i) {
        return Source{left[rows_[i]], i * kRowStep < there};
      });
      if constexpr (Form::kRightTransposed) {
        load_weight_columns(stage + kLeftBytes, depth);
      } else {
        load_weight_rows(stage + kLeftBytes, column, inside);
      }
    }
  }

  // Loads the indices for the step at `depth` while that step waits for a free stage.
  __device__ void look_ahead(int64_t depth) {
    if constexpr (Form::kOverPairs) find_rows(depth);
  }

 private:
  static constexpr int kRowChunks = kTileDepth / kChunk, kRowStep = kThreads / kRowChunks;
  // The operand whose rows are gathered over pairs.
  using Gathered = ColumnRows<Form::kGathers == Gathers::kLeft ? kTileRows : kTileColumns, kThreads>;
  static constexpr int kRows = Form::kOverPairs ? Gathered::kRows : kTileRows / kRowStep;

  static __device__ int64_t row_of_pair(const Rows& left, int64_t pair) {
    if constexpr (Form::kGathers == Gathers::kLeft) return left.index[pair];
    return pair;
  }

  // Returns the number of elements of [first, end) that belong to one step.
  static __device__ int within_step(int64_t first, int64_t end) {
    return static_cast<int>(end - first < kTileDepth ? end - first : kTileDepth);
  }

  // Loads the indices of the gathered operand's rows for the step at `depth`.
  __device__ void find_rows(int64_t depth) {
    const Rows& gathered = Form::kGathers == Gathers::kLeft ? in_.left : in_.right;
    const int first = Gathered::first_row(thread_);
    const int there = within_step(depth, tile_.depth_end) - first;
    const int32_t* index = gathered.index + depth + first;
#pragma unroll
    for (int i = 0; i < kRows; ++i) rows_[i] = i * Gathered::kStep < there ? index[i * Gathered::kStep] : 0;
  }

  template <Gathers kOperand, int kColumns>
  __device__ void load_pairs(uint32_t to, const Rows& rows, int64_t first, int64_t columns,
                             int64_t depth) const {
    using Own = ColumnRows<kColumns, kThreads>;
    const int64_t column = first + Own::first_number(thread_);
    const int first_row = Own::first_row(thread_);
    const int there = column < columns ? within_step(depth, tile_.depth_end) - first_row : 0;
    if constexpr (Form::kGathers == kOperand) {
      const RowAddresses all(rows.data + column, rows.width);
      load_columns<kColumns, kThreads>(to, thread_, [&](int i) {
        return Source{all[rows_[i]], i * Own::kStep < there};
      });
    } else {
      const RowAddresses own(rows.data + (depth + first_row) * rows.width + column, Own::kStep * rows.width);
      load_columns<kColumns, kThreads>(to, thread_, [&](int i) {
        return Source{own[i], i * Own::kStep < there};
      });
    }
  }

  __device__ const Bfloat16* weight() const {
    return in_.right.data + tile_.expert * in_.depth * in_.columns * (kPaired ? 2 : 1);
  }

  __device__ void load_weight_columns(uint32_t to, int64_t depth) const {
    static_assert(!kPaired || !Form::kRightTransposed);
    using Own = ColumnRows<kTileColumns, kThreads>;
    const int64_t column = tile_.first_column + Own::first_number(thread_);
    const int first_row = Own::first_row(thread_);
    const RowAddresses own(weight() + (depth + first_row) * in_.columns + column, Own::kStep * in_.columns);
    const int there = column < in_.columns ? within_step(depth, in_.depth) - first_row : 0;
    load_columns<kTileColumns, kThreads>(to, thread_, [&](int i) {
      return Source{own[i], i * Own::kStep < there};
    });
  }

  __device__ void load_weight_rows(uint32_t to, int64_t column, bool inside) const {
    constexpr int kApart = 4;  // weight_row of a multiple of kRowStep is a multiple of this
    static_assert(weight_row(kRowStep) % kApart == 0 && kSlice / 2 % 32 == 0);
    const int64_t n = tile_.first_column + weight_row(thread_ / kRowChunks);
    const int64_t left = inside ? in_.columns - n : 0;
    const int there = static_cast<int>(left < kTileColumns ? left : kTileColumns);
    const Bfloat16* from = weight() + n * in_.depth + column;
    const RowAddresses first(from, kApart * in_.depth),
        second(from + in_.columns * in_.depth, kApart * in_.depth);
    load_rows<kTileColumns, kThreads>(to, thread_, [&](int i) {
      const int row = weight_row(i * kRowStep);
      if constexpr (!kPaired) return Source{first[row / kApart], row < there};
      const int half = row / kSlice * (kSlice / 2) + row % (kSlice / 2);
      return Source{(row % kSlice < kSlice / 2 ? first : second)[half / kApart], half < there};
    });
  }

  const Gemm& in_;
  const Tile& tile_;
  int thread_;
  int32_t rows_[kRows];  // indices of the gathered operand's rows, or of left's
};

}  // namespace dtopp::ops::cuda
