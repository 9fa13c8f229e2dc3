// Largest sizes that the CUDA kernels accept. The kernels and `dtopp plan` reject larger ones. This header
// includes neither torch nor CUDA.
#pragma once

#include <cstdint>
#include <limits>

namespace dtopp::ops::cuda {

// Experts of route and moe_ffn: a warp holds a token's probabilities in registers (in local memory for large
// numbers of experts).
constexpr int64_t kMostExperts = 2048;

// Hidden size of norm_rotary: the gain's gradient is summed in the shared memory of a block.
constexpr int64_t kWidestNorm = 12280;

// Token–expert pairs of moe_ffn, and tokens of a micro-batch times experts: both are indexed by 32-bit
// integers.
constexpr int64_t kMostPairs = std::numeric_limits<int32_t>::max();

}  // namespace dtopp::ops::cuda
