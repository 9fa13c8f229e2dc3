#include "dtopp/ops/gemm/dot_products.h"

#include <array>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "dtopp/ops/core/bfloat16_loops.h"
#include "dtopp/ops/core/simd.h"
#include "dtopp/ops/gemm/linear.h"

namespace dtopp::ops {
namespace {

constexpr int64_t kRowsBeforeTiles = 32;  // tiles of AMX pay above
constexpr int64_t kDotWeights = int64_t{1} << 16;

using Number = c10::BFloat16;

#if defined(__x86_64__)
constexpr int64_t kDotColumns = 4, kDotLanes = 32;
constexpr int64_t kBlocksAhead = 2;       // the block of columns that is prefetched
constexpr int64_t kRowsInFirstCache = 4;  // prefetched numbers would drive more rows out of that cache
constexpr int kFirstCache = 3, kSecondCache = 2;  // where __builtin_prefetch places numbers

// The sums of the lanes of four registers. The masks take all lanes: GCC warns of the functions without.
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] inline __m128 sum_lanes(
    const __m512 (&sums)[kDotColumns]) {
  constexpr __mmask16 kAll = 0xFFFF;
  constexpr __mmask8 kPairs = 0xFF;
  const __m512d even = (__m512d)_mm512_add_ps(_mm512_maskz_unpacklo_ps(kAll, sums[0], sums[1]),
                                              _mm512_maskz_unpackhi_ps(kAll, sums[0], sums[1]));
  const __m512d odd = (__m512d)_mm512_add_ps(_mm512_maskz_unpacklo_ps(kAll, sums[2], sums[3]),
                                             _mm512_maskz_unpackhi_ps(kAll, sums[2], sums[3]));
  const __m512 four = _mm512_add_ps((__m512)_mm512_maskz_unpacklo_pd(kPairs, even, odd),
                                    (__m512)_mm512_maskz_unpackhi_pd(kPairs, even, odd));
  const __m512 halves = _mm512_add_ps(four, _mm512_maskz_shuffle_f32x4(kAll, four, four, 0b01001110));
  return _mm_add_ps(__builtin_shufflevector(halves, halves, 0, 1, 2, 3),
                    __builtin_shufflevector(halves, halves, 4, 5, 6, 7));
}

// The lines that a block prefetches per step: of four consecutive lines those whose bit is set.
struct Prefetch {
  const Number* ahead;
  uint32_t lines;
};

// Multiplies kRows rows with a block of four columns, rows of the weight. Processors recognize one stream of
// reads: prefetching in the order of the memory reaches twice the bandwidth of four streams that are a row
// apart.
template <int kRows, int kLocality>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] void multiply_dots(const Number* const* rows,
                                                                           const Number* const* columns,
                                                                           int64_t K, Prefetch prefetch,
                                                                           float* C, int64_t ldc,
                                                                           __mmask8 stored) {
  __m512 sums[kRows][kDotColumns];
#pragma GCC unroll 6
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kDotColumns; ++n) sums[m][n] = _mm512_setzero_ps();
  }
  int64_t k = 0;
  for (; k + kDotLanes <= K; k += kDotLanes) {
    __m512bh weight[kDotColumns];
#pragma GCC unroll 4
    for (int n = 0; n < kDotColumns; ++n) {
      weight[n] = (__m512bh)_mm512_loadu_si512(columns[n] + k);
      if (prefetch.lines >> n & 1)
        __builtin_prefetch(prefetch.ahead + k * kDotColumns + n * kDotLanes, /*rw=*/0, kLocality);
    }
#pragma GCC unroll 6
    for (int m = 0; m < kRows; ++m) {
      const auto row = (__m512bh)_mm512_loadu_si512(rows[m] + k);
#pragma GCC unroll 4
      for (int n = 0; n < kDotColumns; ++n) sums[m][n] = _mm512_dpbf16_ps(sums[m][n], row, weight[n]);
    }
  }
  if (k < K) {
    const __mmask32 rest = (uint32_t{1} << (K - k)) - 1;
#pragma GCC unroll 6
    for (int m = 0; m < kRows; ++m) {
      const auto row = (__m512bh)_mm512_maskz_loadu_epi16(rest, rows[m] + k);
#pragma GCC unroll 4
      for (int n = 0; n < kDotColumns; ++n)
        sums[m][n] =
            _mm512_dpbf16_ps(sums[m][n], row, (__m512bh)_mm512_maskz_loadu_epi16(rest, columns[n] + k));
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < kRows; ++m) _mm_mask_storeu_ps(C + m * ldc, stored, sum_lanes(sums[m]));
}

using MultiplyDots = void (*)(const Number* const*, const Number* const*, int64_t, Prefetch, float*, int64_t,
                              __mmask8);
template <int kLocality>
constexpr std::array<MultiplyDots, 6> kDotBlocks = {multiply_dots<1, kLocality>, multiply_dots<2, kLocality>,
                                                    multiply_dots<3, kLocality>, multiply_dots<4, kLocality>,
                                                    multiply_dots<5, kLocality>, multiply_dots<6, kLocality>};
#endif

// Computes the columns [begin, end) of y_TN.
void multiply_dot_columns(const Tensor& x_TD, const Tensor& weight_ND, int64_t begin, int64_t end,
                          const Tensor& y_TN) {
  constexpr int64_t kDotRows = DotProducts::kMostRows;
  const int64_t T = x_TD.size(0), D = x_TD.size(1), N = weight_ND.size(0);
  const auto *x = x_TD.const_data_ptr<Number>(), *weight = weight_ND.const_data_ptr<Number>();
  const bool rounds = y_TN.scalar_type() == at::kBFloat16;
  alignas(64) std::array<float, kDotRows * kPanelColumns> tile;
  std::array<const Number*, kDotRows> rows{};
  for (int64_t t = 0; t < T; t += kDotRows) {
    const int64_t count = std::min(kDotRows, T - t);
    for (int64_t m = 0; m < count; ++m) rows[m] = x + (t + m) * D;
    for (int64_t n = begin; n < end; n += kPanelColumns) {
      const int64_t columns = std::min(kPanelColumns, end - n);
      float* to = rounds ? tile.data() : y_TN.mutable_data_ptr<float>() + t * N + n;
      DotProducts::multiply(rows.data(), count, weight + n * D, columns, D, to, rounds ? kPanelColumns : N);
      for (int64_t m = 0; m < count && rounds; ++m)
        bfloat16_loops().convert(to + m * kPanelColumns, y_TN.mutable_data_ptr<Number>() + (t + m) * N + n,
                                 columns);
    }
  }
}

}  // namespace

bool DotProducts::multiply_rows_of(const Tensor& x, int64_t rows) {
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 && has_avx512_bf16() &&
         (rows < kRowsBeforeTiles || !has_amx());
}

#if defined(__x86_64__)
void DotProducts::multiply(const Number* const* rows, int64_t M, const Number* weight_NK, int64_t N,
                           int64_t K, float* C, int64_t ldc, const Number* next_NK) {
  const auto& dot_blocks = M <= kRowsInFirstCache ? kDotBlocks<kFirstCache> : kDotBlocks<kSecondCache>;
  const auto most = std::ssize(dot_blocks), blocks = (M + most - 1) / most;
  if (next_NK == nullptr) next_NK = weight_NK + N * K;
  for (int64_t n = 0; n < N; n += kDotColumns) {
    const int64_t present = std::min(kDotColumns, N - n);
    std::array<const Number*, kDotColumns> columns{};
    for (int64_t i = 0; i < kDotColumns; ++i) columns[i] = weight_NK + (n + std::min(i, present - 1)) * K;
    const auto stored = static_cast<__mmask8>((1U << present) - 1);
    const int64_t later = n + kBlocksAhead * kDotColumns;
    const Number* ahead = later < N ? weight_NK + later * K : next_NK + (later - N) * K;
    // The blocks of rows share the prefetches, so that the memory is read while all of them are multiplied.
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t m = M * block / blocks, count = M * (block + 1) / blocks - m;
      uint32_t lines = 0;
      for (int64_t line = block; line < kDotColumns; line += blocks) lines |= 1U << line;
      dot_blocks[count - 1](rows + m, columns.data(), K, {ahead, lines}, C + m * ldc + n, ldc, stored);
    }
  }
}
#else
void DotProducts::multiply(const Number* const*, int64_t, const Number*, int64_t, int64_t, float*, int64_t,
                           const Number*) {}
#endif

std::vector<Tensor> multiply_by_dot_products(const Tensor& x_TD, at::TensorList weights,
                                             at::ScalarType type) {
  const Tensor x_rows = x_TD.contiguous();
  std::vector<Tensor> plain_weights, products;
  std::vector<int64_t> first_unit = {0};  // of each weight; a unit is kPanelColumns columns
  for (const Tensor& weight_ND : weights) {
    plain_weights.push_back(weight_ND.contiguous());
    products.push_back(at::empty({x_TD.size(0), weight_ND.size(0)}, x_TD.options().dtype(type)));
    first_unit.push_back(first_unit.back() + (weight_ND.size(0) + kPanelColumns - 1) / kPanelColumns);
  }
  const int64_t grain =
      std::max<int64_t>(kDotWeights / std::max<int64_t>(kPanelColumns * x_TD.size(1), 1), 1);
  at::parallel_for(0, first_unit.back(), grain, [&](int64_t begin, int64_t end) {
    for (size_t i = 0; i < products.size(); ++i) {
      const int64_t first = std::max(begin, first_unit[i]), last = std::min(end, first_unit[i + 1]);
      if (first < last)
        multiply_dot_columns(x_rows, plain_weights[i], (first - first_unit[i]) * kPanelColumns,
                             std::min((last - first_unit[i]) * kPanelColumns, plain_weights[i].size(0)),
                             products[i]);
    }
  });
  return products;
}

}  // namespace dtopp::ops
