// Loops over bfloat16 that pack the operands of matrix_tiles_bf16.h and finish its products while they are in
// cache. Each is there several times: number by number (the scalar ones, which say what is right), and in the
// vector registers of AVX-512, with and without AVX512_BF16, where the compiler knows these.
//
// All packers move bits; only `convert`, `convert_scaled` and what finishes products round.
#pragma once

#include <cstdint>
#include <vector>

#include "dtopp/ops/core/bfloat16.h"

namespace dtopp {

constexpr int64_t kPackedDepth = 32;   // K of a packed operand is filled up to a multiple of this with zeros
constexpr int64_t kPanelColumns = 64;  // of a packed right side, and of a tile of the result

// Where the activation's derivative of a tile goes. The rows of `pre` and `d_pre` hold the gate's numbers,
// and `ffn` numbers later the up projection's.
struct SwigluGradients {
  const c10::BFloat16* pre;
  int64_t pre_stride, ffn;
  c10::BFloat16* d_pre;
  int64_t d_pre_stride;
  c10::BFloat16* scaled;  // r * A
  int64_t scaled_stride;
  const float* gates;  // of row n: gates[tokens[n] * gate_stride]
  int64_t gate_stride;
  const int64_t* tokens;
  float* grad_gates;  // of row n; added to
};

// Where the rows of a tile are added: y[tokens[n] * stride + i] += gate * tile[n, i]; without gates, 1.
struct RowSums {
  float* y;
  int64_t stride;
  const int64_t* tokens;
  const float* gates = nullptr;  // of row n: gates[tokens[n] * gate_stride]
  int64_t gate_stride = 0;
};

struct Bfloat16Loops {
  const char* instructions;  // for people: what they are compiled for

  // to = from, rounded.
  void (*convert)(const float* from, c10::BFloat16* to, int64_t count);

  // to = scale * from, rounded.
  void (*convert_scaled)(const c10::BFloat16* from, float scale, c10::BFloat16* to, int64_t count);

  // kPackedDepth columns of a left side: to[m * stride + k] = columns[k][m] for k below `present`, 0 from
  // there to kPackedDepth.
  void (*pack_left_columns)(const c10::BFloat16* const* columns, int64_t present, int64_t M,
                            c10::BFloat16* to, int64_t stride);

  // Two rows of a right side: column n of either goes to number 2 (n % kPanelColumns) and the one after it,
  // of panel n / kPanelColumns; panels are `step` numbers apart, the last is filled up with zeros. No odd row
  // (null): zeros.
  void (*pack_right_rows)(const c10::BFloat16* even, const c10::BFloat16* odd, int64_t columns,
                          c10::BFloat16* to, int64_t step);

  // 16 columns of a panel of a right side, of which `columns` are there and are the rows of its transpose:
  // to[k / 2 * 2 kPanelColumns + 2 n + k % 2] = rows[n * stride + k], 0 from K to the packed depth.
  void (*pack_right_transposed)(const c10::BFloat16* rows, int64_t stride, int64_t columns, int64_t K,
                                c10::BFloat16* to);

  // A tile of `columns` gate and, kPanelColumns / 2 later, as many up pre-activations a row: act = silu(gate)
  // * up. The pre-activations are kept in `saved` unless that is null, up `ffn` numbers after gate.
  void (*swiglu)(const float* tile, int64_t rows, int64_t columns, c10::BFloat16* act, int64_t act_stride,
                 c10::BFloat16* saved, int64_t saved_stride, int64_t ffn);

  // A tile of dA: swiglu_backward (moe_ffn_backward_cpu.h) of every row.
  void (*swiglu_gradients)(const float* tile, int64_t rows, int64_t columns, const SwigluGradients& to);

  void (*add_rows)(const float* tile, int64_t rows, int64_t columns, const RowSums& to);
};

// All that this machine runs (and ATEN_CPU_CAPABILITY allows), the scalar ones first, the fastest last.
std::vector<const Bfloat16Loops*> all_bfloat16_loops();

// The fastest.
const Bfloat16Loops& bfloat16_loops();

}  // namespace dtopp
