// Types of CUDA kernels' arguments, for headers that include neither torch nor the CUDA toolkit.
#pragma once

#include <cstdint>
#include <type_traits>

struct CUstream_st;

namespace dtopp::ops::cuda {

using Stream = CUstream_st*;  // the toolkit's cudaStream_t

struct Bfloat16 {
  uint16_t bits;
};

// The type of sums: float for float and Bfloat16, double for double.
template <typename Scalar>
using Accumulator = std::conditional_t<std::is_same_v<Scalar, double>, double, float>;

}  // namespace dtopp::ops::cuda
