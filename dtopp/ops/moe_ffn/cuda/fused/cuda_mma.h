// Wraps the warp-level matrix instruction for bf16 with fp32 sums, for compute capability 8.0 and above.
#pragma once

#include <cstdint>

namespace dtopp::ops::cuda {

using Quad = uint32_t[4];

#if defined(__CUDACC__)

// Loads four 8 x 8 matrices. Lane l passes the address of row l % 8 of matrix l / 8, 16 bytes. It receives in
// out[m] the numbers 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix m, or of column l / 4 if kTransposed.
template <bool kTransposed>
__device__ void load_matrices(Quad& out, uint32_t row) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(row)
                 : "memory");
  }
}

// sums += A B for A [16, 16] and B [16, 8], whose 8 x 8 matrices are laid out as load_matrices returns them.
// a holds the rows 0–7 and 8–15 of the columns 0–7, then of the columns 8–15. b_first and b_second hold the
// rows 0–7 and 8–15, transposed. Lane l holds in sums[2 h + i] the row l / 4 + 8 h and the column 2 (l % 4) +
// i.
__device__ inline void mma(float* sums, const Quad& a, uint32_t b_first, uint32_t b_second) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_first), "r"(b_second));
}

#else

using cuda_on_host::load_matrices;
using cuda_on_host::mma;

#endif

}  // namespace dtopp::ops::cuda
