// The binary tree along which moe_ffn adds the rows of a token's experts, those that it did not choose being
// absent: two neighbours join before others do that lie further apart, in blocks of E's odd divisor times a
// power of two. A rank that holds 1, 1/2, 1/4, … of the experts (expert parallelism) therefore forms a
// subtree, and sums over ranks complete the same tree. Free of torch and CUDA.
#pragma once

#include <bit>
#include <cstdint>

namespace dtopp {

struct ExpertTree {
  uint32_t odd;           // the divisor
  int32_t levels_of_odd;  // of such a block by itself
};

inline ExpertTree expert_tree(int64_t experts) {
  const auto all = static_cast<uint32_t>(experts);
  const uint32_t odd = experts == 0 ? 1 : all >> std::countr_zero(all);
  return {odd, static_cast<int32_t>(std::bit_width(odd - 1))};
}

// When the parts that two experts are in join, left < right: the lower, the earlier.
#if defined(__CUDACC__)
__host__ __device__
#endif
    inline int
    join_level(const ExpertTree& tree, uint32_t left, uint32_t right) {
  const bool inside = left / tree.odd == right / tree.odd;
  const uint32_t differ =
      inside ? (left % tree.odd) ^ (right % tree.odd) : (left / tree.odd) ^ (right / tree.odd);
#if defined(__CUDA_ARCH__)
  const int highest = 31 - __clz(static_cast<int>(differ));
#else
  const int highest = static_cast<int>(std::bit_width(differ)) - 1;
#endif
  return inside ? highest : tree.levels_of_odd + highest;
}

}  // namespace dtopp
