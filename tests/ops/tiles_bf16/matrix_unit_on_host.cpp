#include "tests/ops/tiles_bf16/matrix_unit_on_host.h"

#include <atomic>

#include "dtopp/ops/gemm/cpu_kernel.h"

namespace dtopp::ops {
namespace {

std::atomic<int64_t> product_count{0}, holding_count{0};
thread_local bool holds_tiles = false;

}  // namespace

namespace matrix_unit_on_host {

int64_t products() { return product_count; }
int64_t threads_holding_tiles() { return holding_count; }

}  // namespace matrix_unit_on_host

bool MatrixUnit::available() { return true; }

void MatrixUnit::multiply(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, bool add,
                          const c10::BFloat16* A, const c10::BFloat16* B, float* C) {
  TORCH_CHECK(M > 0 && M % 16 == 0 && M <= 128 && N == 64 && K > 0 && K % 32 == 0, "a product of ", M, " x ",
              N, " x ", K);
  TORCH_CHECK(lda >= K && lda % 32 == 0 && ldb == 64 && ldc >= N, "strides ", lda, ", ", ldb, " and ", ldc);
  TORCH_CHECK(reinterpret_cast<uintptr_t>(A) % 64 == 0 && reinterpret_cast<uintptr_t>(B) % 64 == 0,
              "packed operands begin on a cache line");
  ++product_count;
  if (!std::exchange(holds_tiles, true)) ++holding_count;
  for (int64_t m = 0; m < M; ++m) {
    float* row = C + m * ldc;
    for (int64_t n = 0; n < N && !add; ++n) row[n] = 0;
    for (int64_t k = 0; k < K; k += 2) {
      const float even = load(A[m * lda + k]), odd = load(A[m * lda + k + 1]);
      const c10::BFloat16* pairs = B + k / 2 * ldb * 2;
      for (int64_t n = 0; n < N; ++n) row[n] += even * load(pairs[2 * n]) + odd * load(pairs[2 * n + 1]);
    }
  }
}

void MatrixUnit::release() {
  if (std::exchange(holds_tiles, false)) --holding_count;
}

}  // namespace dtopp::ops
