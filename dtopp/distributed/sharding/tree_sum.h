// Sums in one order, however many ranks form them. Leaves 0, 1, 2, … (of a step: its micro-batches) are added
// along an aligned binary tree, padded to a power of two with leaves that are absent:
//   6 leaves: ((0 + 1) + (2 + 3)) + (4 + 5)
// Ranks own aligned blocks of leaves, so a tree over the ranks of trees over their leaves is that tree: the
// same bits at every number of ranks. An absent leaf adds nothing; where a tensor must stand for it, it is
// full of kNothing (x + -0 is x for every x; -0 + 0 is not -0).
//
// Leaves are of one shape and floating type, on one device.
#pragma once

#include <vector>

#include "dtopp/ops/core/torch.h"

namespace dtopp {

inline constexpr double kNothing = -0.0;

struct LeafBlock {
  int64_t begin, end;  // end - begin may be 0
};
// The leaves of a rank, or of a block of `unit` ranks among `size` such: B of them, the smallest unit · 2^i
// with size · B >= leaves. 6 leaves on 4 ranks: 2, 2, 2, 0.
LeafBlock leaf_block(int64_t leaves, int64_t rank, int64_t size, int64_t unit = 1);

// Undefined leaves are absent; the sum is undefined where all are, and the leaf itself where one is there.
// The leaves stay as they are.
at::Tensor tree_sum(std::vector<at::Tensor> leaves);

// The tree sum of leaves that come one after another, by holding at most max(1, ceil(log2(leaves))) of them.
class TreeAccumulator {
 public:
  // The next leaf, undefined if it is absent. Its memory is the accumulator's from now on.
  void add(at::Tensor leaf) { join({std::move(leaf), 0}); }
  // The leaf that the next one is added to, undefined where there is none. Where there is, the next leaf may
  // be of a narrower type, since nothing is kept of it; or the caller adds it himself and says so by added().
  at::Tensor waiting() const;
  void added();
  // The sum, undefined where no leaf was there; the accumulator begins anew.
  at::Tensor finish();

 private:
  struct Node {
    at::Tensor sum;
    int level;  // of 2^level leaves
  };
  void join(Node node);

  std::vector<Node> nodes_;  // levels fall
};

}  // namespace dtopp
