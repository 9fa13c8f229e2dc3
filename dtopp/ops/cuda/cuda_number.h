// Number types of CUDA kernels, for headers that do not include torch.
#pragma once

#include <cstdint>
#include <type_traits>

namespace dtopp::cuda {

struct Bfloat16 {
  uint16_t bits;
};

// The type of sums: float for float and Bfloat16, double for double.
template <typename Scalar>
using Accumulator = std::conditional_t<std::is_same_v<Scalar, double>, double, float>;

}  // namespace dtopp::cuda
