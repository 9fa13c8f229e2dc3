// Tiles of the products in pair_products_cuda.h: which there are, found on the device from the experts'
// numbers of pairs, and how their operands come into shared memory, in the layout of cuda_wgmma.h.
#pragma once

#include "dtopp/ops/cuda_async.h"
#include "dtopp/ops/cuda_kernel.h"
#include "dtopp/ops/cuda_wgmma.h"

namespace dtopp::cuda {

constexpr int kTileDepth = 64;  // of the sum, at a time: 128 bytes of bf16
constexpr int kChunk = 8;       // numbers of 16 bytes

// Rows of [rows, width]; where they are gathered row i is data[index[i]].
struct Rows {
  const Bfloat16* data;
  const int32_t* index;
  int64_t width;
};

enum class Gathers { kNothing, kLeft, kRight };

// Where kOverPairs is false, out_AN[a] = sum over k of left_AK[a] right[e], right being [E, N, K] or,
// transposed, [E, K, N]; paired: of N = 2 F numbers those n and F + n are formed together. Where it is true,
// out_EMN[e] = the sum over an expert's pairs a of left_AM[a]^T right_AN[a].
template <bool kOverPairs_, bool kRightTransposed_, Gathers kGathers_>
struct Form {
  static constexpr bool kOverPairs = kOverPairs_, kRightTransposed = kRightTransposed_;
  static constexpr Gathers kGathers = kGathers_;
};

struct Product {
  const int32_t* offsets_E1;
  int experts;
  Rows left, right;
  int64_t rows;     // M (over pairs only)
  int64_t columns;  // N, of paired ones F
  int64_t depth;    // K (not over pairs)
};

// Part of the output with the numbers that it is formed of.
struct Tile {
  int expert;
  int64_t first_row;  // of left and out; over pairs of the expert's [M, N]
  int rows;           // there are, at most those of a tile
  int64_t first_column;
  int64_t depth_begin, depth_end;
};

// The tiles of a product, in the order in which blocks take them: an expert's rows first, so that
// neighbouring blocks share its weights.
template <bool kOverPairs, int kTileRows, int kTileColumns>
class Schedule {
 public:
  static __host__ __device__ size_t bytes(int64_t experts) {
    return (experts + 1) * sizeof(int32_t) * (kOverPairs ? 1 : 2);
  }

  // By every thread of the block; the tables lie in shared memory, `bytes` of it.
  __device__ Schedule(const Product& in, int32_t* tables)
      : in_(in), offsets_E1_(tables), row_tiles_before_(tables + in.experts + 1) {
    for (int e = static_cast<int>(threadIdx.x); e <= in.experts; e += static_cast<int>(blockDim.x))
      offsets_E1_[e] = in.offsets_E1[e];
    __syncthreads();
    column_tiles_ = static_cast<int>((in.columns + kTileColumns - 1) / kTileColumns);
    if constexpr (kOverPairs) {
      row_tiles_ = static_cast<int>((in.rows + kTileRows - 1) / kTileRows);
      tiles_ = in.experts * row_tiles_ * column_tiles_;
    } else {
      if (warp_index() == 0) count_row_tiles();
      __syncthreads();
      tiles_ = row_tiles_before_[in.experts] * column_tiles_;
    }
  }

  __device__ int tiles() const { return tiles_; }

  __device__ Tile operator[](int index) const {
    if constexpr (kOverPairs) {
      const int e = index / (row_tiles_ * column_tiles_), within = index % (row_tiles_ * column_tiles_);
      const int64_t first_row = static_cast<int64_t>(within % row_tiles_) * kTileRows;
      return {e,
              first_row,
              rows_from(in_.rows - first_row),
              static_cast<int64_t>(within / row_tiles_) * kTileColumns,
              offsets_E1_[e],
              offsets_E1_[e + 1]};
    } else {
      int e = 0, beyond = in_.experts;  // tiles of e begin at the index or before, of `beyond` after it
      while (beyond - e > 1) {
        const int middle = (e + beyond) / 2;
        (row_tiles_before_[middle] * column_tiles_ <= index ? e : beyond) = middle;
      }
      const int row_tiles = row_tiles_before_[e + 1] - row_tiles_before_[e];
      const int within = index - row_tiles_before_[e] * column_tiles_;
      const int64_t first_row = offsets_E1_[e] + static_cast<int64_t>(within % row_tiles) * kTileRows;
      return {e,
              first_row,
              rows_from(offsets_E1_[e + 1] - first_row),
              static_cast<int64_t>(within / row_tiles) * kTileColumns,
              0,
              in_.depth};
    }
  }

 private:
  static __device__ int rows_from(int64_t rows) {
    return static_cast<int>(rows < kTileRows ? rows : kTileRows);
  }

  __device__ void count_row_tiles() const {
    int before = 0;
    for (int first = 0; first < in_.experts; first += kWarp) {
      const int e = first + lane_index();
      int tiles = 0;
      if (e < in_.experts) tiles = (offsets_E1_[e + 1] - offsets_E1_[e] + kTileRows - 1) / kTileRows;
      const int inclusive = warp_scan(tiles);
      if (e < in_.experts) row_tiles_before_[e] = before + inclusive - tiles;
      before += __shfl_sync(kAllLanes, inclusive, kWarp - 1);
    }
    if (lane_index() == 0) row_tiles_before_[in_.experts] = before;
  }

  const Product& in_;
  int32_t *offsets_E1_, *row_tiles_before_;
  int row_tiles_ = 0, column_tiles_ = 0, tiles_ = 0;
};

// What is loaded of a row begins at `from`; where it is not there, zeros are.
struct Source {
  const Bfloat16* from;
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

// The rows of kTileDepth whose chunks a thread loads of kColumns columns.
template <int kColumns, int kThreads>
struct ColumnRows {
  static constexpr int kChunks = kColumns / kChunk, kStep = kThreads / kChunks, kRows = kTileDepth / kStep;

  static __device__ int row(int thread, int i) { return thread / kChunks + i * kStep; }
};

// Loads kColumns columns of kTileDepth rows, in blocks of 64 columns one after another: row_of(i, r) is row
// r, the i-th a thread loads, from the thread's own chunk of the columns on.
template <int kColumns, int kThreads, typename RowOf>
__device__ void load_columns(uint32_t to, int thread, const RowOf& row_of) {
  using Own = ColumnRows<kColumns, kThreads>;
  constexpr int kBlockChunks = kSwizzledRowBytes / 16;
  const int chunk = thread % Own::kChunks;
  to += chunk / kBlockChunks * (kTileDepth * kSwizzledRowBytes);
#pragma unroll
  for (int i = 0; i < Own::kRows; ++i) {
    const int r = Own::row(thread, i);
    const Source row = row_of(i, r);
    copy_async(to + swizzled(r, chunk % kBlockChunks), row.from, row.there ? 16 : 0);
  }
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
  __device__ void load(uint32_t stage, int64_t depth) {
    if constexpr (Form::kOverPairs) {
      load_pairs<Gathers::kLeft, kTileRows>(stage, in_.left, tile_.first_row, in_.rows, depth);
      load_pairs<Gathers::kRight, kTileColumns>(stage + kLeftBytes, in_.right, tile_.first_column,
                                                in_.columns, depth);
      find_rows(depth + kTileDepth);  // on their way while the next step waits for room
    } else {
      const int64_t column = depth + thread_ % kRowChunks * kChunk;
      const bool inside = column < in_.depth;
      const Bfloat16* left = in_.left.data + column;
      const int rows = tile_.rows - thread_ / kRowChunks;
      load_rows<kTileRows, kThreads>(stage, thread_, [&](int i) {
        return Source{left + rows_[i] * in_.left.width, inside && i * kRowStep < rows};
      });
      if constexpr (Form::kRightTransposed) {
        load_weight_columns(stage + kLeftBytes, depth);
      } else {
        load_weight_rows(stage + kLeftBytes, column, inside);
      }
    }
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

  // Where the gathered operand's rows of the step at `depth` lie.
  __device__ void find_rows(int64_t depth) {
    const Rows& gathered = Form::kGathers == Gathers::kLeft ? in_.left : in_.right;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t pair = depth + Gathered::row(thread_, i);
      rows_[i] = pair < tile_.depth_end ? gathered.index[pair] : 0;
    }
  }

  template <Gathers kOperand, int kColumns>
  __device__ void load_pairs(uint32_t to, const Rows& rows, int64_t first, int64_t columns,
                             int64_t depth) const {
    const int64_t column = first + thread_ % (kColumns / kChunk) * kChunk;
    const int64_t left = column < columns ? tile_.depth_end - depth : 0;
    load_columns<kColumns, kThreads>(to, thread_, [&](int i, int r) {
      const bool there = r < left;
      int64_t row = there ? depth + r : 0;
      if constexpr (Form::kGathers == kOperand) row = rows_[i];
      return Source{rows.data + row * rows.width + column, there};
    });
  }

  __device__ const Bfloat16* weight() const {
    return in_.right.data + tile_.expert * in_.depth * in_.columns * (kPaired ? 2 : 1);
  }

  __device__ void load_weight_columns(uint32_t to, int64_t depth) const {
    static_assert(!kPaired || !Form::kRightTransposed);
    const int64_t column = tile_.first_column + thread_ % (kTileColumns / kChunk) * kChunk;
    const int64_t left = column < in_.columns ? in_.depth - depth : 0;
    const Bfloat16* first = weight() + depth * in_.columns + column;
    load_columns<kTileColumns, kThreads>(to, thread_, [&](int /*i*/, int r) {
      return Source{first + r * in_.columns, r < left};
    });
  }

  __device__ void load_weight_rows(uint32_t to, int64_t column, bool inside) const {
    const int64_t n = tile_.first_column + thread_ / kRowChunks;
    const int64_t left = inside ? in_.columns - n : 0;
    const Bfloat16* first = weight() + n * in_.depth + column;
    const Bfloat16* second = first + in_.columns * in_.depth;
    load_rows<kTileColumns, kThreads>(to, thread_, [&](int i) {
      const int row = i * kRowStep;
      if constexpr (!kPaired) return Source{first + row * in_.depth, row < left};
      static_assert(kSlice / 2 % kRowStep == 0);
      const int half = row / kSlice * (kSlice / 2) + row % (kSlice / 2);
      return Source{(row % kSlice < kSlice / 2 ? first : second) + half * in_.depth, half < left};
    });
  }

  const Product& in_;
  const Tile& tile_;
  int thread_;
  int32_t rows_[kRows];  // of the gathered operand, or of left
};

}  // namespace dtopp::cuda
