// Loops over bf16 that pack the operands of cpu_kernel.h and post-process product tiles while they are
// in cache.
//
// Each loop has up to three versions: scalar, AVX-512, and AVX-512 with AVX512_BF16. The scalar version is
// the reference. The others need a compiler that supports these instructions. Packing loops only move bits.
// `convert`, `convert_scaled` and the loops that post-process tiles round.
#pragma once

#include <vector>

#include "dtopp/ops/core/bfloat16.h"

namespace dtopp::ops {

constexpr int64_t kPackedDepth = 32;  // K of a packed operand is padded with zeros to a multiple of this
constexpr int64_t kPanelColumns =
    64;  // columns per panel of a packed right operand, and per tile of the result

constexpr float kLog2E = 1.44269504F;

// Destination of SwiGLU's gradients for one tile. A row of `pre` and `d_pre` holds the gate values; the up
// values follow `ffn` numbers later.
struct SwigluGradients {
  const c10::BFloat16* pre;
  int64_t pre_stride, ffn;
  c10::BFloat16* d_pre;
  int64_t d_pre_stride;
  c10::BFloat16* scaled;  // r A: the activation times its gate
  int64_t scaled_stride;
  const float* gates;  // gate of row n: gates[tokens[n] * gate_stride]
  int64_t gate_stride;
  const int64_t* tokens;
  float* grad_gates;  // of row n; the result is added
};

// Destination of a tile's rows: y[tokens[n] * stride + i] += gate * tile[n, i]. The gate is 1 if `gates` is
// null.
struct RowSums {
  float* y;
  int64_t stride;
  const int64_t* tokens;
  const float* gates = nullptr;  // gate of row n: gates[tokens[n] * gate_stride]
  int64_t gate_stride = 0;
};

// Destination of the weights of attention and of the gradients of its scores, for one tile. A row is that of
// a key, a column that of a query.
template <typename Number>
struct SoftmaxGradients {
  const float *logsumexp, *means;  // of a column
  float scale;
  bool diagonal;  // true: columns before the row are masked; their results are 0
  Number *weights, *d_scores;
  int64_t stride;  // of both
};

struct Bfloat16Loops {
  const char* instructions;  // name of the instruction set, for messages

  // to = from, rounded.
  void (*convert)(const float* from, c10::BFloat16* to, int64_t count);

  // to = scale * from, rounded.
  void (*convert_scaled)(const c10::BFloat16* from, float scale, c10::BFloat16* to, int64_t count);

  // Packs kPackedDepth columns of a left operand: to[m * stride + k] = columns[k][m] for k < present, and 0
  // for present <= k < kPackedDepth.
  void (*pack_left_columns)(const c10::BFloat16* const* columns, int64_t present, int64_t M,
                            c10::BFloat16* to, int64_t stride);

  // Packs two rows of a right operand. Column n of `even` goes to number 2 (n % kPanelColumns) of panel n /
  // kPanelColumns, and column n of `odd` to the next number. Panels are `step` numbers apart; the last one is
  // padded with zeros. If `odd` is null, zeros replace it.
  void (*pack_right_rows)(const c10::BFloat16* even, const c10::BFloat16* odd, int64_t columns,
                          c10::BFloat16* to, int64_t step);

  // Packs 16 columns of a panel of a right operand from `columns` rows of its transpose; missing rows count
  // as zeros. to[k / 2 * 2 kPanelColumns + 2 n + k % 2] = rows[n * stride + k] for k < K, and 0 up to the
  // packed depth.
  void (*pack_right_transposed)(const c10::BFloat16* rows, int64_t stride, int64_t columns, int64_t K,
                                c10::BFloat16* to);

  // act = silu(gate) * up. A row of the tile holds `columns` gate pre-activations and, kPanelColumns / 2
  // numbers later, as many up pre-activations. Stores the pre-activations in `saved` unless it is null, up
  // `ffn` numbers after gate.
  void (*swiglu)(const float* tile, int64_t rows, int64_t columns, c10::BFloat16* act, int64_t act_stride,
                 c10::BFloat16* saved, int64_t saved_stride, int64_t ffn);

  // SwiGLU's gradients for every row of a tile of dA. swiglu_backward in moe_ffn_backward_cpu.cpp has the
  // formula.
  void (*swiglu_gradients)(const float* tile, int64_t rows, int64_t columns, const SwigluGradients& to);

  void (*add_rows)(const float* tile, int64_t rows, int64_t columns, const RowSums& to);

  // weights = 2^(scale (scores - h)), where h is the largest of `highest` and the `count` scores, and 0 for
  // count <= i < padded. Writes h to `highest` and returns the sum of the weights before rounding. The scores
  // from `count` up to the next multiple of 32 are overwritten.
  float (*softmax)(float* scores, int64_t count, int64_t padded, float scale, float& highest,
                   c10::BFloat16* weights);

  // For each number of a tile of scores and of one of their weights' gradients:
  // w = 2^(scale log2(e) tile - logsumexp) and d_score = scale w (d_tile - mean). The logsumexp is to base 2.
  void (*softmax_gradients)(const float* tile, const float* d_tile, int64_t rows,
                            const SoftmaxGradients<c10::BFloat16>& to);
};

// Returns all versions that this machine supports and ATEN_CPU_CAPABILITY allows, from the scalar one to the
// fastest.
std::vector<const Bfloat16Loops*> all_bfloat16_loops();

// Returns the fastest of them.
const Bfloat16Loops& bfloat16_loops();

}  // namespace dtopp::ops
