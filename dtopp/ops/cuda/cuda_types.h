// Types of CUDA kernels' launches and arguments, for headers that include neither torch nor the CUDA toolkit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

struct CUstream_st;

namespace dtopp::ops::cuda {

// Largest sizes that the CUDA kernels accept. The kernels and `dtopp plan` reject larger ones.

// Experts of route and moe_ffn: a warp holds a token's probabilities in registers (in local memory for large
// numbers of experts).
constexpr int64_t kMostExperts = 2048;

// Hidden size of norm_rotary: the gain's gradient is summed in the shared memory of a block.
constexpr int64_t kWidestNorm = 12280;

// Token–expert pairs of moe_ffn, and tokens of a micro-batch times experts: both are indexed by 32-bit
// integers.
constexpr int64_t kMostPairs = std::numeric_limits<int32_t>::max();

using Stream = CUstream_st*;  // the toolkit's cudaStream_t

// Launches nothing if `blocks` or `blocks_y` is 0.
struct Launch {
  const char* op;  // the name that errors begin with
  Stream stream;
  int64_t blocks;
  int threads;  // per block
  size_t shared_bytes = 0;
  int64_t blocks_y = 1;
};

struct Device {
  int multiprocessors;
  int capability;       // compute capability; 90 is 9.0
  size_t shared_bytes;  // maximum per block
};

struct Bfloat16 {
  uint16_t bits;
};

// The type of sums: float for float and Bfloat16, double for double.
template <typename Scalar>
using Accumulator = std::conditional_t<std::is_same_v<Scalar, double>, double, float>;

}  // namespace dtopp::ops::cuda
