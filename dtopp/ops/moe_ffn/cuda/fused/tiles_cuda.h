// Divides the GEMMs of fused_gemm.h into tiles, on the device, from the experts' numbers of pairs, and loads
// the operands of a tile into shared memory.
#pragma once

#include "dtopp/ops/cuda/cuda_kernel.h"
#include "dtopp/ops/moe_ffn/cuda/fused/cuda_async.h"

namespace dtopp::ops::cuda {

constexpr int kChunk = 8;  // bf16 numbers in 16 bytes

// The rows of a matrix [rows, width]. If `index` is not null, row i is data[index[i]].
struct Rows {
  const Bfloat16* data;
  const int32_t* index;
  int64_t width;
};

enum class Gathers { kNothing, kLeft, kRight };

// The form of a GEMM.
//
//   kOverPairs false:  out_AN[a] = sum over k of left_AK[a] right[e], for each pair a of expert e
//   kOverPairs true:   out_EMN[e] = sum over the expert's pairs a of left_AM[a]^T right_AN[a]
//
// Without kOverPairs, right is [E, N, K], or [E, K, N] if kRightTransposed. Paired columns: right has 2 F
// rows, and a tile contains the columns n and F + n together.
template <bool kOverPairs_, bool kRightTransposed_, Gathers kGathers_>
struct Form {
  static constexpr bool kOverPairs = kOverPairs_, kRightTransposed = kRightTransposed_;
  static constexpr Gathers kGathers = kGathers_;
  // How a row's four lanes share four neighboring fragments of 8 output columns. True: lane q has the columns
  // 8 q to 8 q + 7 of the 32. False: lane q has the columns 2 q and 2 q + 1 of each fragment.
  static constexpr bool kInOrder = !kOverPairs && !kRightTransposed;
};

struct Gemm {
  const int32_t* offsets_E1;
  int experts;
  Rows left, right;
  int64_t rows;     // M (only over pairs)
  int64_t columns;  // N, or F if columns are paired
  int64_t depth;    // K (only if not over pairs)
};

// A part of the output, and the range of K that it sums over.
struct Tile {
  int expert;
  int64_t first_row;  // of left and out; over pairs, of the expert's [M, N]
  int rows;           // that exist, at most kTileRows
  int64_t first_column;
  int64_t depth_begin, depth_end;
};

// The tiles of a GEMM in the order in which blocks process them. The row tiles of an expert vary fastest, so
// neighboring blocks share its weights.
template <bool kOverPairs, int kTileRows, int kTileColumns>
class Schedule {
 public:
  static __host__ __device__ size_t bytes(int64_t experts) {
    return (experts + 1) * sizeof(int32_t) * (kOverPairs ? 1 : 2);
  }

  // Every thread of the block calls this. `tables` is shared memory of `bytes` bytes.
  __device__ Schedule(const Gemm& in, int32_t* tables)
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
      int e = 0, beyond = in_.experts;  // tiles of e begin at or before `index`, those of `beyond` after it
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

  const Gemm& in_;
  int32_t *offsets_E1_, *row_tiles_before_;
  int row_tiles_ = 0, column_tiles_ = 0, tiles_ = 0;
};

// The layout of operands in shared memory, which Hopper's warp-group matrix instruction reads
// (gemm_wgmma_cuda.cu).
//
// An operand consists of rows of 128 bytes, which are 8 chunks of 16 bytes. Chunk c of row r lies at position
// c ^ (r % 8) of the row ("128-byte swizzle"):
//
//   position   0 1 2 3 4 5 6 7
//   row 0      0 1 2 3 4 5 6 7      chunks
//   row 1      1 0 3 2 5 4 7 6
//   row 2      2 3 0 1 6 7 4 5
//
// Eight rows form a group of 1,024 bytes. Groups begin at multiples of 1,024 bytes.

constexpr int kWarpGroup = 128;     // threads that issue the instruction together
constexpr int kWgmmaRows = 64;      // M
constexpr int kWgmmaColumns = 256;  // N
constexpr int kWgmmaDepth = 16;     // K
constexpr int kWgmmaSums = kWgmmaRows * kWgmmaColumns / kWarpGroup;  // per thread
constexpr uint32_t kSwizzledRowBytes = 128;
constexpr uint32_t kSwizzledGroupBytes = 8 * kSwizzledRowBytes;

// Returns the byte offset of a row's 16-byte chunk within its operand.
__device__ inline uint32_t swizzled(uint32_t row, uint32_t chunk) {
  return row * kSwizzledRowBytes + ((chunk ^ row % 8) << 4);
}

// Loads the operands of a tile into shared memory, in the layout above.
//
// On Hopper one warp group loads for two groups that multiply 128 x 256 x 64 in 1,024 cycles at best.
// Addresses must therefore be cheap to compute.

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
