#include "dtopp/ops/matrix_tiles_bf16.h"

#include <ATen/native/CPUBlas.h>

namespace dtopp {

bool MatrixUnit::available() { return at::native::cpublas::could_pack(at::kBFloat16); }

void MatrixUnit::multiply(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, bool add,
                          const c10::BFloat16* A, const c10::BFloat16* B, float* C) {
  at::native::cpublas::brgemm(M, N, K, lda, ldb, ldc, add, A, B, C);
}

// Without it the next product of libtorch's own on this thread died of an illegal instruction.
void MatrixUnit::release() { at::native::cpublas::brgemm_release(); }

}  // namespace dtopp
