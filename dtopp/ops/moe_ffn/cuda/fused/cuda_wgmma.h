// Wraps Hopper's warp-group matrix instruction for bf16 with fp32 sums, and defines the layout of its
// operands in shared memory.
//
// An operand consists of rows of 128 bytes, which are 8 chunks of 16 bytes. Chunk c of row r lies at position
// c ^ (r % 8) of the row ("128-byte swizzle"):
//
//   position   0 1 2 3 4 5 6 7
//   row 0      0 1 2 3 4 5 6 7      chunks
//   row 1      1 0 3 2 5 4 7 6
//   row 2      2 3 0 1 6 7 4 5
//
// Eight rows form a group of 1,024 bytes. Groups begin at multiples of 1,024 bytes.
#pragma once

#include <cstdint>

namespace dtopp::ops::cuda {

constexpr int kWarpGroup = 128;     // threads that issue the instruction together
constexpr int kWgmmaRows = 64;      // M
constexpr int kWgmmaColumns = 256;  // N
constexpr int kWgmmaDepth = 16;     // K
constexpr int kWgmmaSums = kWgmmaRows * kWgmmaColumns / kWarpGroup;  // per thread
constexpr uint32_t kSwizzledRowBytes = 128;
constexpr uint32_t kSwizzledGroupBytes = 8 * kSwizzledRowBytes;

// Returns the byte offset of a row's 16-byte chunk within its operand.
__device__ inline uint32_t swizzled(uint32_t row, uint32_t chunk) {
  return row * kSwizzledRowBytes + ((chunk ^ row % 8) << 4);
}

// Describes an operand [M, K] (or [N, K]): its beginning, the distance between groups of 8 rows and the
// distance between blocks of 64 columns. K-major: the rows belong to M and the columns to K; a block is wider
// than the instruction, and its distance is ignored. MN-major ("transposed"): the rows belong to K and the
// columns to M.
__device__ inline uint64_t wgmma_operand(uint32_t begin, uint32_t group_bytes, uint32_t block_bytes) {
  const auto field = [](uint32_t bytes) { return static_cast<uint64_t>((bytes & 0x3FFFFU) >> 4); };
  constexpr uint64_t kSwizzle128 = 1;
  return field(begin) | field(block_bytes) << 16 | field(group_bytes) << 32 | kSwizzle128 << 62;
}

#if defined(__CUDACC__)

// Required before the first instruction, and before the next instruction on sums in progress.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Makes a group of the instructions since the last call.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until all groups except the last kGroups are complete. Do not access the sums while a group that
// writes them is in progress.
template <int kGroups>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// Keeps the compiler from moving uses of the sums across this point. Call it before the first instruction and
// after the last wait.
__device__ inline void keep_in_registers(float (&sums)[kWgmmaSums]) {
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
}

#define DTOPP_SUMS_8(i)                                                                      \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), \
      "+f"(sums[i + 5]), "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define DTOPP_SUMS_32(i) DTOPP_SUMS_8(i), DTOPP_SUMS_8(i + 8), DTOPP_SUMS_8(i + 16), DTOPP_SUMS_8(i + 24)

// sums (+)= A B^T. The warp group starts it, and wgmma_wait completes it. Thread t holds the following sums,
// for i and h in {0, 1}:
//
//   sums[4 j + 2 h + i]:  row 16 (t / 32) + 8 h + t % 32 / 4,  column 8 j + 2 (t % 4) + i
template <bool kTransposedA, bool kTransposedB>
__device__ inline void wgmma(float (&sums)[kWgmmaSums], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, p, 1, 1, %131, %132;\n"
      "}\n"
      : DTOPP_SUMS_32(0), DTOPP_SUMS_32(32), DTOPP_SUMS_32(64), DTOPP_SUMS_32(96)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransposedA ? 1 : 0),
        "n"(kTransposedB ? 1 : 0));
}

#undef DTOPP_SUMS_8
#undef DTOPP_SUMS_32

#else

using cuda_on_host::keep_in_registers;
using cuda_on_host::wgmma;
using cuda_on_host::wgmma_commit;
using cuda_on_host::wgmma_fence;
using cuda_on_host::wgmma_wait;

#endif

}  // namespace dtopp::ops::cuda
