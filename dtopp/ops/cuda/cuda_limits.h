// The largest sizes that the kernels for CUDA devices take; they refuse larger ones, and so does `dtopp
// plan`. Free of torch and CUDA.
#pragma once

#include <cstdint>
#include <limits>

namespace dtopp::cuda {

// route, moe_ffn: the probabilities of a token stay in the registers of a warp (in local memory for the
// larger numbers of experts).
constexpr int64_t kMostExperts = 2048;

// norm_rotary: the gradient of the gain is summed in the shared memory of a block. Hidden size.
constexpr int64_t kWidestNorm = 12280;

// moe_ffn: pairs are numbered by 32-bit integers, as are their places in a table of tokens by experts. Tokens
// of a micro-batch times experts, and token-expert pairs.
constexpr int64_t kMostPairs = std::numeric_limits<int32_t>::max();

}  // namespace dtopp::cuda
