// How the operands of a tile (pair_tiles_cuda.h) come into shared memory, in the layout of cuda_wgmma.h. On
// Hopper a warp group loads for two that multiply 128 x 256 x 64 in 1,024 cycles at best: addresses must be
// cheap.
#pragma once

#include "dtopp/ops/moe_ffn/cuda/fused/cuda_async.h"
#include "dtopp/ops/moe_ffn/cuda/fused/cuda_wgmma.h"
#include "dtopp/ops/moe_ffn/cuda/fused/pair_tiles_cuda.h"

namespace dtopp::cuda {

constexpr int kTileDepth = 64;  // of the sum, at a time: 128 bytes of bf16

// Rows at equal distances, or those of a table: where row i is takes one instruction, 64 + 32 x 32 bits.
struct RowAddresses {
  const Bfloat16* first;
  uint32_t bytes;  // from one to the next

  __device__ RowAddresses(const Bfloat16* first, int64_t numbers)
      : first(first),
        bytes(computed_anew(static_cast<uint32_t>(numbers) * static_cast<uint32_t>(sizeof(Bfloat16)))) {}
  __device__ const void* operator[](uint32_t i) const {
    return reinterpret_cast<const char*>(first) + static_cast<uint64_t>(bytes) * i;
  }
};

// What is loaded of a row begins at `from`; where it is not there, zeros are.
struct Source {
  const void* from;
  bool there;
};

// Loads kTileDepth columns of kRows rows: row_of(i) is the i-th a thread loads, r = thread / 8 + i kThreads /
// 8, from the thread's own chunk of the columns on.
template <int kRows, int kThreads, typename RowOf>
__device__ void load_rows(uint32_t to, int thread, const RowOf& row_of) {
  constexpr int kChunks = kTileDepth / kChunk, kStep = kThreads / kChunks;
  static_assert(kStep % 8 == 0);  // all rows of a thread have its chunk in the same place
  to += swizzled(thread / kChunks, thread % kChunks);
#pragma unroll
  for (int i = 0; i < kRows / kStep; ++i) {
    const Source row = row_of(i);
    copy_async(to + i * kStep * kSwizzledRowBytes, row.from, row.there ? 16 : 0);
  }
}

// The rows of kTileDepth whose chunks a thread loads of kColumns columns: first_row + i kStep.
template <int kColumns, int kThreads>
struct ColumnRows {
  static constexpr int kChunks = kColumns / kChunk, kStep = kThreads / kChunks, kRows = kTileDepth / kStep;

  static __device__ int first_row(int thread) { return thread / kChunks; }
  static __device__ int64_t first_number(int thread) { return thread % kChunks * kChunk; }
};

// Loads kColumns columns of kTileDepth rows, in blocks of 64 columns one after another: row_of(i) is the i-th
// a thread loads, from the thread's own chunk of the columns on.
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
    // A step sets bits of the row's number modulo 8 that the first row's has not.
    const uint32_t place = (to ^ (i * Own::kStep % 8 * 16)) + i * Own::kStep * kSwizzledRowBytes;
    copy_async(place, row.from, row.there ? 16 : 0);
  }
}

// Which of the weight's rows stands where row `place` of the right operand does in shared memory, so that a
// lane's columns of the output are neighbours (Form::kInOrder): bits of a number below 32 change places.
__host__ __device__ constexpr int weight_row(int place) {
  return place / 32 * 32 + place / 2 % 4 * 8 + place / 8 % 4 * 2 + place % 2;
}

// A thread's part of loading a tile's operands, a step of kTileDepth at a time, one step after another. Where
// columns are paired, of kSlice of the right operand's the first half are of the first F and the second half
// those F after them.
template <typename Form, bool kPaired, int kTileRows, int kTileColumns, int kSlice, int kThreads>
class TileLoader {
 public:
  static constexpr uint32_t kLeftBytes = kTileRows * kTileDepth * sizeof(Bfloat16);
  static constexpr uint32_t kStageBytes = kLeftBytes + kTileColumns * kTileDepth * sizeof(Bfloat16);

  __device__ TileLoader(const Product& in, const Tile& tile, int thread)
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

  // `stage`: kStageBytes of shared memory, left then right.
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

  // What the step at `depth` needs of elsewhere, on its way while that step waits for room.
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

  // Of the numbers from `first` on to `end`, those of a step.
  static __device__ int within_step(int64_t first, int64_t end) {
    return static_cast<int>(end - first < kTileDepth ? end - first : kTileDepth);
  }

  // Where the gathered operand's rows of the step at `depth` lie.
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
    constexpr int kApart = 4;  // weight_row of multiples of kRowStep is a multiple of it
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

  const Product& in_;
  const Tile& tile_;
  int thread_;
  int32_t rows_[kRows];  // of the gathered operand, or of left
};

}  // namespace dtopp::cuda
