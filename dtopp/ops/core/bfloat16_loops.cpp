#include "dtopp/ops/core/bfloat16_loops.h"

#include <algorithm>
#include <utility>

#include "dtopp/ops/core/simd.h"

// clang does not support GCC's target pragmas, so it compiles the scalar loops only.
#if defined(__x86_64__) && !defined(__clang__)
#define DTOPP_HAS_REGISTERS
#include <immintrin.h>
#endif

namespace dtopp::ops {
namespace {
namespace scalar_loops {

void convert(const float* from, c10::BFloat16* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) store(to + i, from[i]);
}

void convert_scaled(const c10::BFloat16* from, float scale, c10::BFloat16* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) store(to + i, scale * load(from[i]));
}

void pack_left_columns(const c10::BFloat16* const* columns, int64_t present, int64_t M, c10::BFloat16* to,
                       int64_t stride) {
  for (int64_t m = 0; m < M; ++m)
    for (int64_t k = 0; k < kPackedDepth; ++k)
      to[m * stride + k] = k < present ? columns[k][m] : c10::BFloat16(0);
}

void pack_right_rows(const c10::BFloat16* even, const c10::BFloat16* odd, int64_t columns, c10::BFloat16* to,
                     int64_t step) {
  for (int64_t first = 0; first < columns; first += kPanelColumns, to += step) {
    for (int64_t n = 0; n < kPanelColumns; ++n) {
      const bool inside = first + n < columns;
      to[2 * n] = inside ? even[first + n] : c10::BFloat16(0);
      to[2 * n + 1] = inside && odd != nullptr ? odd[first + n] : c10::BFloat16(0);
    }
  }
}

void pack_right_transposed(const c10::BFloat16* rows, int64_t stride, int64_t columns, int64_t K,
                           c10::BFloat16* to) {
  const int64_t depth = (K + kPackedDepth - 1) / kPackedDepth * kPackedDepth;
  for (int64_t n = 0; n < 16; ++n) {
    for (int64_t k = 0; k < depth; ++k)
      to[k / 2 * 2 * kPanelColumns + 2 * n + k % 2] =
          n < columns && k < K ? rows[n * stride + k] : c10::BFloat16(0);
  }
}

float sigmoid_of(float x) { return 1 / (1 + fast_exp(-x)); }

void swiglu(const float* tile, int64_t rows, int64_t columns, c10::BFloat16* act, int64_t act_stride,
            c10::BFloat16* saved, int64_t saved_stride, int64_t ffn) {
  for (int64_t n = 0; n < rows; ++n) {
    const float *gate = tile + n * kPanelColumns, *up = gate + kPanelColumns / 2;
    for (int64_t f = 0; f < columns; ++f) {
      store(act + n * act_stride + f, gate[f] * sigmoid_of(gate[f]) * up[f]);
      if (saved == nullptr) continue;
      store(saved + n * saved_stride + f, gate[f]);
      store(saved + n * saved_stride + ffn + f, up[f]);
    }
  }
}

void swiglu_gradients(const float* tile, int64_t rows, int64_t columns, const SwigluGradients& to) {
  for (int64_t n = 0; n < rows; ++n) {
    const c10::BFloat16* pre = to.pre + n * to.pre_stride;
    c10::BFloat16* d_pre = to.d_pre + n * to.d_pre_stride;
    const float factor = to.gates[to.tokens[n] * to.gate_stride];
    for (int64_t f = 0; f < columns; ++f) {
      const float gate = load(pre[f]), up = load(pre[to.ffn + f]), da = tile[n * kPanelColumns + f];
      const float sig = sigmoid_of(gate), silu = gate * sig;
      to.grad_gates[n] += da * silu * up;
      store(to.scaled + n * to.scaled_stride + f, factor * silu * up);
      store(d_pre + f, factor * da * up * (sig + silu * (1 - sig)));
      store(d_pre + to.ffn + f, factor * da * silu);
    }
  }
}

void add_rows(const float* tile, int64_t rows, int64_t columns, const RowSums& to) {
  for (int64_t n = 0; n < rows; ++n) {
    const float gate = to.gates == nullptr ? 1.0F : to.gates[to.tokens[n] * to.gate_stride];
    float* sum = to.y + to.tokens[n] * to.stride;
    for (int64_t i = 0; i < columns; ++i) sum[i] += gate * tile[n * kPanelColumns + i];
  }
}

float power_of_two(float x) { return fast_exp(0.693147181F * x); }

float softmax(float* scores, int64_t count, int64_t padded, float scale, float& highest,
              c10::BFloat16* weights) {
  for (int64_t i = 0; i < count; ++i) highest = scores[i] > highest ? scores[i] : highest;
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float weight = power_of_two(scale * (scores[i] - highest));
    store(weights + i, weight);
    sum += weight;
  }
  std::fill(weights + count, weights + padded, c10::BFloat16(0));
  return sum;
}

void softmax_gradients(const float* tile, const float* d_tile, int64_t rows,
                       const SoftmaxGradients<c10::BFloat16>& to) {
  for (int64_t j = 0; j < rows; ++j) {
    for (int64_t i = 0; i < kPanelColumns; ++i) {
      const int64_t at = j * kPanelColumns + i;
      const bool masked = to.diagonal && i < j;
      const float weight = masked ? 0 : power_of_two(to.scale * kLog2E * tile[at] - to.logsumexp[i]);
      store(to.weights + j * to.stride + i, weight);
      store(to.d_scores + j * to.stride + i, masked ? 0 : to.scale * weight * (d_tile[at] - to.means[i]));
    }
  }
}

constexpr Bfloat16Loops kLoops{
    "scalar", convert,          convert_scaled, pack_left_columns, pack_right_rows,  pack_right_transposed,
    swiglu,   swiglu_gradients, add_rows,       softmax,           softmax_gradients};

}  // namespace scalar_loops

constexpr const Bfloat16Loops& kScalar = scalar_loops::kLoops;

#if defined(DTOPP_HAS_REGISTERS)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#define DTOPP_AVX512
namespace avx512 {
#include "dtopp/ops/core/bfloat16_registers.h"
}  // namespace avx512
#pragma GCC target("avx512bf16")
#define DTOPP_AVX512_BF16
namespace avx512_bf16 {
#include "dtopp/ops/core/bfloat16_registers.h"
}  // namespace avx512_bf16
#undef DTOPP_AVX512_BF16
#undef DTOPP_AVX512
#pragma GCC pop_options
#endif

}  // namespace

std::vector<const Bfloat16Loops*> all_bfloat16_loops() {
  std::vector<const Bfloat16Loops*> all{&kScalar};
#if defined(DTOPP_HAS_REGISTERS)
  if (widest_simd() == Simd::kAvx512) all.push_back(&avx512::kLoops);
  if (has_avx512_bf16()) all.push_back(&avx512_bf16::kLoops);
#endif
  return all;
}

const Bfloat16Loops& bfloat16_loops() {
  static const Bfloat16Loops& fastest = *all_bfloat16_loops().back();
  return fastest;
}

}  // namespace dtopp::ops
