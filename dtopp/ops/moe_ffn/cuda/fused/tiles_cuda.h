// Divides the GEMMs of fused_gemm.h into tiles, on the device, from the experts' numbers of pairs.
#pragma once

#include "dtopp/ops/cuda/cuda_kernel.h"

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

}  // namespace dtopp::ops::cuda
