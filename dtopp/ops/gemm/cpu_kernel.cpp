#include "dtopp/ops/gemm/cpu_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <ATen/native/CPUBlas.h>

#include "dtopp/ops/core/simd.h"
#include "dtopp/ops/gemm/linear.h"

namespace dtopp::ops {
namespace {

#if defined(__x86_64__)
constexpr int64_t kLanes = 16, kVectors = kPanelColumns / kLanes, kPairs = 2 * kLanes;

// Multiplies kRows rows of C, held in kRows x 4 registers. AVX512_BF16 adds the products of two k at a time.
template <int kRows>
[[gnu::target("avx512f,avx512bf16")]] void multiply_rows(int64_t K, int64_t lda, int64_t ldb, int64_t ldc,
                                                         bool add, const c10::BFloat16* A,
                                                         const c10::BFloat16* B, float* C) {
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int64_t m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v)
      sums[m][v] = add ? _mm512_loadu_ps(C + m * ldc + v * kLanes) : _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < K; k += 2) {
    __m512bh pairs[kVectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) pairs[v] = (__m512bh)_mm512_loadu_si512(B + k * ldb + v * kPairs);
#pragma GCC unroll 8
    for (int64_t m = 0; m < kRows; ++m) {
      int32_t two = 0;
      __builtin_memcpy(&two, A + m * lda + k, sizeof(two));
      const auto row = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 4
      for (int64_t v = 0; v < kVectors; ++v) sums[m][v] = _mm512_dpbf16_ps(sums[m][v], row, pairs[v]);
    }
  }
#pragma GCC unroll 8
  for (int64_t m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) _mm512_storeu_ps(C + m * ldc + v * kLanes, sums[m][v]);
  }
}

void multiply_pairs(int64_t M, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, bool add,
                    const c10::BFloat16* A, const c10::BFloat16* B, float* C) {
  int64_t m = 0;
  for (; m + 6 <= M; m += 6) multiply_rows<6>(K, lda, ldb, ldc, add, A + m * lda, B, C + m * ldc);
  for (; m < M; m += 2) multiply_rows<2>(K, lda, ldb, ldc, add, A + m * lda, B, C + m * ldc);
}
#else
void multiply_pairs(int64_t, int64_t, int64_t, int64_t, int64_t, bool, const c10::BFloat16*,
                    const c10::BFloat16*, float*) {}
#endif

}  // namespace

bool MatrixUnit::available() {
  static const bool has = has_amx() || has_avx512_bf16();
  return has;
}

void MatrixUnit::multiply(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, bool add,
                          const c10::BFloat16* A, const c10::BFloat16* B, float* C) {
  if (has_amx()) return at::native::cpublas::brgemm(M, N, K, lda, ldb, ldc, add, A, B, C);
  multiply_pairs(M, K, lda, ldb, ldc, add, A, B, C);
}

// Without this call, libtorch's next product on the same thread failed with an illegal instruction.
void MatrixUnit::release() {
  if (has_amx()) at::native::cpublas::brgemm_release();
}

}  // namespace dtopp::ops
