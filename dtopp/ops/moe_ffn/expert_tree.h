// The binary tree along which moe_ffn adds the outputs of a token's experts. It fixes the order of additions
// in f32 and f64: sums over EP ranks then have the same bits as the sum on one rank.
//
// E is its largest odd divisor times a power of two. Each block of `odd` neighboring experts forms a subtree,
// and the blocks are joined pairwise. Experts that the token did not select are left out. Example: E = 6 has
// odd = 3 and two blocks.
//
//   expert    0    1    2       3    4    5
//              \  /     |        \  /     |
//   level 0    0+1      |        3+4      |
//                \     /           \     /
//   level 1      (0+1)+2           (3+4)+5
//                       \         /
//   level 2        ((0+1)+2) + ((3+4)+5)
//
// A token that selects the experts 0, 2 and 5 gets (0 + 2) + 5.
//
// An EP rank that holds 1, 1/2, 1/4, … of the experts holds a complete subtree. Sums over ranks complete the
// same tree. This header includes neither torch nor CUDA.
#pragma once

#include <bit>
#include <cstdint>

namespace dtopp::ops {

struct ExpertTree {
  uint32_t odd;           // experts per block
  int32_t levels_of_odd;  // levels within one block
};

inline ExpertTree expert_tree(int64_t experts) {
  const auto all = static_cast<uint32_t>(experts);
  const uint32_t odd = experts == 0 ? 1 : all >> std::countr_zero(all);
  return {odd, static_cast<int32_t>(std::bit_width(odd - 1))};
}

// Returns the level at which the subtrees that hold two experts join, for left < right. Lower levels join
// first.
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

}  // namespace dtopp::ops
