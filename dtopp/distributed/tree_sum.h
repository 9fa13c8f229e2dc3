// Adds tensors in one fixed order, independent of the number of ranks that share the work.
//
// Leaves 0, 1, 2, … (the micro-batches of a step) are added along an aligned binary tree. It is padded to a
// power of two with absent leaves:
//
// 6 leaves: ((0 + 1) + (2 + 3)) + (4 + 5)
//
// Each rank owns an aligned range of leaves. Adding the ranks' sums along a tree over ranks completes the
// same tree, so the bits are equal for every number of ranks. An absent leaf adds nothing. If a tensor must
// represent it, the tensor is filled with kNothing: x + -0 is x for every x, but -0 + 0 is not -0.
//
// Preconditions: leaves have one shape and floating type and are on one device
// Collective:    no
#pragma once

#include <vector>

#include "dtopp/ops/core/torch.h"

namespace dtopp::distributed {
inline constexpr double kNothing = -0.0;

struct MicroBatchRange {
  int64_t begin, end;  // end - begin may be 0
};
// The leaves of one EP group. `rank` is its EDP rank, and `size` is the EDP size. (With EP size 1, these are
// the rank and the number of ranks.)
//
// Each EP group gets B leaves, the last ones fewer. B is the smallest ep_size * 2^i with size * B >= leaves.
// Example: 6 leaves on 4 ranks are 2, 2, 2, 0; on 2 EP groups of 4 ranks they are 4, 2.
MicroBatchRange local_micro_batches(int64_t leaves, int64_t rank, int64_t size, int64_t ep_size = 1);

// Undefined leaves are absent. The sum is undefined if all are absent, and aliases the leaf if one is
// present. The leaves are not modified.
Tensor tree_sum(std::vector<Tensor> leaves);

// The tree sum of leaves that arrive one after another. It holds at most max(1, ceil(log2(leaves))) tensors.
class TreeAccumulator {
 public:
  // Adds the next leaf, undefined if it is absent. The accumulator takes over the leaf's memory.
  void add(Tensor leaf) { join({std::move(leaf), 0}); }
  // The tensor to which the next leaf will be added; undefined if there is none. If it is defined, the next
  // leaf may have a narrower type because it is not stored. The caller may also add the leaf to it and then
  // call added().
  Tensor waiting() const;
  void added();
  // Returns the sum, undefined if all leaves were absent, and resets the accumulator.
  Tensor finish();

 private:
  struct Node {
    Tensor sum;
    int level;  // the sum covers 2^level leaves
  };
  void join(Node node);

  std::vector<Node> nodes_;  // in order of falling levels
};

}  // namespace dtopp::distributed
