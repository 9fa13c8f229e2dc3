// The fused kernels' last steps on a tile, and the two kernels behind fused_gemm.h.
#pragma once

#include <cstring>

#include "dtopp/ops/cuda/swiglu_cuda.h"
#include "dtopp/ops/moe_ffn/cuda/fused/cuda_async.h"
#include "dtopp/ops/moe_ffn/cuda/fused/tiles_cuda.h"

namespace dtopp::ops::cuda {

// Final steps of a tile (rounding, accumulation, activation), on the sums in the registers of the warp that
// formed them.
//
// A warp holds 16 rows of neighboring fragments of 8 columns. With wgmma and with mma, a thread holds in
// sums[4 j + 2 h + i] the row lane / 4 + 8 h and the column 2 (lane % 4) + i of fragment j:
//
//   row of the fragment     columns 0 1    2 3    4 5    6 7
//           0               lane    0      1      2      3        h = 0
//           1               lane    4      5      6      7
//          ...
//           8               lane    0      1      2      3        h = 1
//
// All lanes must call these functions. Memory is read and written in rows of 16 bytes. If columns are in
// order (Form::kInOrder), a lane's part of four fragments is such a row. Otherwise the four lanes of a row
// exchange four fragments.

// The position of a warp's sums in the output.
struct Fragments {
  const Tile& tile;
  int first_row;         // in the tile
  int64_t first_column;  // in the output
  int slice;             // index of the slice of columns, over all tiles of the row

  __device__ int row(int half) const { return first_row + lane_index() / 4 + 8 * half; }
  __device__ bool has(int half) const { return row(half) < tile.rows; }
};

using Words = uint32_t[4];  // two bf16 numbers per word

__device__ inline uint32_t pack(float low, float high) {
  const auto two = __floats2bfloat162_rn(low, high);
  uint32_t word = 0;
  static_assert(sizeof(two) == sizeof(word));
  memcpy(&word, &two, sizeof(word));
  return word;
}
__device__ inline float low_of(uint32_t word) { return __uint_as_float(word << 16); }
__device__ inline float high_of(uint32_t word) { return __uint_as_float(word & 0xFFFF0000U); }

// Within each four lanes, words[r] of lane q becomes words[q] of lane r.
__device__ inline void transpose(Words& words) {
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool upper = (lane_index() & bit) != 0;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if ((r & bit) != 0) continue;
      const uint32_t other = __shfl_xor_sync(kAllLanes, upper ? words[r] : words[r + bit], bit);
      (upper ? words[r] : words[r + bit]) = other;
    }
  }
}

// Stores four fragments of a row, the first of which begins at `column`. The row has `columns` columns.
template <bool kInOrder>
__device__ void store_words(Bfloat16* row, int64_t column, int64_t columns, bool there, Words& words) {
  if constexpr (!kInOrder) transpose(words);
  column += lane_index() % 4 * kChunk;
  if (!there || column >= columns) return;
  Pack<uint32_t, 4> chunk;
#pragma unroll
  for (int r = 0; r < 4; ++r) chunk.of[r] = words[r];
  *reinterpret_cast<Pack<uint32_t, 4>*>(row + column) = chunk;
}

// Loads this lane's part of four fragments, or zeros if they do not exist. After transpose() it holds the
// words of the sums.
__device__ inline void load_chunk(const Bfloat16* row, int64_t column, int64_t columns, bool there,
                                  Words& chunk) {
  column += lane_index() % 4 * kChunk;
  Pack<uint32_t, 4> loaded{};
  if (there && column < columns) loaded = *reinterpret_cast<const Pack<uint32_t, 4>*>(row + column);
#pragma unroll
  for (int r = 0; r < 4; ++r) chunk[r] = loaded.of[r];
}

// Rounds the sums. `out` is [A, N], or [E, rows, N] for sums over pairs.
template <bool kInOrder_>
struct Round {
  static constexpr bool kPaired = false, kReads = false, kInOrder = kInOrder_;
  Bfloat16* out;
  int64_t rows;  // of an expert's [M, N]; 0: rows are pairs

  template <int kSums>
  __device__ void operator()(const Gemm& gemm, const Fragments& at, const float (&sums)[kSums]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Bfloat16* row = out + (at.tile.expert * rows + at.tile.first_row + at.row(half)) * gemm.columns;
#pragma unroll
      for (int j = 0; j < kSums / 4; j += 4) {
        Words words;
#pragma unroll
        for (int r = 0; r < 4; ++r)
          words[r] = pack(sums[4 * (j + r) + 2 * half], sums[4 * (j + r) + 2 * half + 1]);
        store_words<kInOrder>(row, at.first_column + j * 8, gemm.columns, at.has(half), words);
      }
    }
  }
};

// Stores or adds the fp32 sums. `out` is f32 [E, rows, N]. Four lanes together hold 32 bytes of a row, the
// unit of a memory transaction.
struct Accumulate {
  static constexpr bool kPaired = false, kReads = false, kInOrder = false;
  float* out;
  int64_t rows;
  bool add;  // true: add to the old values

  template <int kSums>
  __device__ void operator()(const Gemm& gemm, const Fragments& at, const float (&sums)[kSums]) const {
    const int64_t first_column = at.first_column + lane_index() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!at.has(half)) continue;
      float* row =
          out + (at.tile.expert * rows + at.tile.first_row + at.row(half)) * gemm.columns + first_column;
      const int64_t columns = gemm.columns - first_column;
#pragma unroll
      for (int j = 0; j < kSums / 4; ++j) {
        if (j * 8 >= columns) break;
        const float low = sums[4 * j + 2 * half], high = sums[4 * j + 2 * half + 1];
        if (add) {
          add_two(row + j * 8, low, high);
        } else {
          *reinterpret_cast<Pack<float, 2>*>(row + j * 8) = {low, high};
        }
      }
    }
  }
};

// Rounds the pre-activations and computes the activations. The first half of the fragments belongs to the
// gate, the second half to up.
struct Activate {
  static constexpr bool kPaired = true, kReads = false, kInOrder = true;
  Bfloat16 *pre_AG, *act_AF;

  template <int kSums>
  __device__ void operator()(const Gemm& gemm, const Fragments& at, const float (&sums)[kSums]) const {
    constexpr int kUps = kSums / 2;  // the sums of up begin here
    const int64_t ffn = gemm.columns;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t pair = at.tile.first_row + at.row(half);
#pragma unroll
      for (int j = 0; j < kSums / 8; j += 4) {
        Words gates, ups, acts;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int n = 4 * (j + r) + 2 * half;
          gates[r] = pack(sums[n], sums[n + 1]);
          ups[r] = pack(sums[kUps + n], sums[kUps + n + 1]);
          acts[r] = pack(swiglu<Bfloat16>(low_of(gates[r]), low_of(ups[r])),
                         swiglu<Bfloat16>(high_of(gates[r]), high_of(ups[r])));
        }
        const int64_t column = at.first_column + j * 8;
        store_words<kInOrder>(pre_AG + pair * 2 * ffn, column, ffn, at.has(half), gates);
        store_words<kInOrder>(pre_AG + pair * 2 * ffn + ffn, column, ffn, at.has(half), ups);
        store_words<kInOrder>(act_AF + pair * ffn, column, ffn, at.has(half), acts);
      }
    }
  }
};

// Computes SwigluGradient's values from dA, the gradient of r A. Writes <dA, A> over the warp's columns to
// grad_gate_AP[a][slice].
struct ActivateBackward {
  static constexpr bool kPaired = false, kReads = true, kInOrder = false;
  const Bfloat16* pre_AG;
  const float* gate_A;
  Bfloat16 *d_pre_AG, *scaled_AF;
  float* grad_gate_AP;
  int64_t parts;

  // Prefetches the pre-activations of kColumns columns. Each lane prefetches the gate half or the up half of
  // one row.
  template <int kColumns>
  __device__ void prefetch(const Gemm& gemm, const Fragments& at) const {
    constexpr int kLine = 128 / sizeof(Bfloat16);
    const int64_t ffn = gemm.columns;
    const int row = at.first_row + lane_index() / 2;
    if (row >= at.tile.rows) return;
    const Bfloat16* half = pre_AG + (at.tile.first_row + row) * 2 * ffn + lane_index() % 2 * ffn;
#pragma unroll
    for (int64_t column = at.first_column; column < at.first_column + kColumns; column += kLine)
      if (column < ffn) prefetch_line(half + column);
  }

  template <int kSums>
  __device__ void operator()(const Gemm& gemm, const Fragments& at, const float (&sums)[kSums]) const {
    constexpr int kQuads = kSums / 16;  // groups of four fragments per `half`
    const int64_t ffn = gemm.columns;
    const auto pair = [&](int half) { return at.tile.first_row + at.row(half); };
    Words gates, ups, next_gates, next_ups;
    const auto read = [&](int quad) {
      const int half = quad / kQuads;
      const Bfloat16* row = pre_AG + pair(half) * 2 * ffn;
      const int64_t column = at.first_column + quad % kQuads * 32;
      load_chunk(row, column, ffn, at.has(half), next_gates);
      load_chunk(row + ffn, column, ffn, at.has(half), next_ups);
    };
    read(0);
    float r_pair = 0, grad_gate = 0;
#pragma unroll
    for (int quad = 0; quad < 2 * kQuads; ++quad) {
      const int half = quad / kQuads, j = quad % kQuads * 4;
      const bool there = at.has(half);
      if (j == 0) {
        r_pair = there ? gate_A[pair(half)] : 0;
        grad_gate = 0;
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        gates[r] = next_gates[r];
        ups[r] = next_ups[r];
      }
      if (quad + 1 < 2 * kQuads) read(quad + 1);  // before the stores, which loads may not overtake
      transpose(gates);
      transpose(ups);
      Words d_gates, d_ups, scaled;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int n = 4 * (j + r) + 2 * half;
        const auto low = swiglu_gradient<Bfloat16>(low_of(gates[r]), low_of(ups[r]), sums[n], r_pair),
                   high = swiglu_gradient<Bfloat16>(high_of(gates[r]), high_of(ups[r]), sums[n + 1], r_pair);
        grad_gate += low.grad_gate + high.grad_gate;
        scaled[r] = pack(low.scaled, high.scaled);
        d_gates[r] = pack(low.d_gate, high.d_gate);
        d_ups[r] = pack(low.d_up, high.d_up);
      }
      const int64_t column = at.first_column + j * 8;
      Bfloat16* d_pre = d_pre_AG + pair(half) * 2 * ffn;
      store_words<kInOrder>(scaled_AF + pair(half) * ffn, column, ffn, there, scaled);
      store_words<kInOrder>(d_pre, column, ffn, there, d_gates);
      store_words<kInOrder>(d_pre + ffn, column, ffn, there, d_ups);
      if (j + 4 < 4 * kQuads) continue;
      grad_gate += __shfl_xor_sync(kAllLanes, grad_gate, 1);
      grad_gate += __shfl_xor_sync(kAllLanes, grad_gate, 2);
      if (there && at.first_column < ffn && lane_index() % 4 == 0)
        grad_gate_AP[pair(half) * parts + at.slice] = grad_gate;
    }
  }
};

constexpr int kTileRows = 128;

// For compute capability 9.0, with tiles of 128 x 256.
template <typename Form, typename Epilogue>
void multiply_by_wgmma(const Gemm& gemm, const Epilogue& epilogue, const Device& device, Stream stream);

// For compute capability 8.0 and above, with tiles of 128 x 128.
template <typename Form, typename Epilogue>
void multiply_by_mma(const Gemm& gemm, const Epilogue& epilogue, const Device& device, Stream stream);

// Columns of a row that a warp processes together; they belong to one slice.
constexpr int kWgmmaSlice = kWgmmaColumns, kMmaSlice = 64;

// The forms of moe_ffn's GEMMs.
using ActivateForm = Form<false, false, Gathers::kLeft>;
using ProjectForm = Form<false, false, Gathers::kNothing>;
using ActivationGradientForm = Form<false, true, Gathers::kLeft>;
using InputGradientForm = Form<false, true, Gathers::kNothing>;
using GateUpGradientForm = Form<true, true, Gathers::kRight>;
using DownGradientForm = Form<true, true, Gathers::kLeft>;

template <typename Form>
using RoundOf = Round<Form::kInOrder>;

#define DTOPP_FOR_FUSED_GEMMS(multiply)                                                                      \
  template void multiply<ActivateForm>(const Gemm&, const Activate&, const Device&, Stream);                 \
  template void multiply<ProjectForm>(const Gemm&, const RoundOf<ProjectForm>&, const Device&, Stream);      \
  template void multiply<ActivationGradientForm>(const Gemm&, const ActivateBackward&, const Device&,        \
                                                 Stream);                                                    \
  template void multiply<InputGradientForm>(const Gemm&, const RoundOf<InputGradientForm>&, const Device&,   \
                                            Stream);                                                         \
  template void multiply<GateUpGradientForm>(const Gemm&, const RoundOf<GateUpGradientForm>&, const Device&, \
                                             Stream);                                                        \
  template void multiply<DownGradientForm>(const Gemm&, const RoundOf<DownGradientForm>&, const Device&,     \
                                           Stream);                                                          \
  template void multiply<GateUpGradientForm>(const Gemm&, const Accumulate&, const Device&, Stream);         \
  template void multiply<DownGradientForm>(const Gemm&, const Accumulate&, const Device&, Stream);

}  // namespace dtopp::ops::cuda
