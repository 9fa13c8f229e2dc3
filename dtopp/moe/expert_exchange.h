// A layer's experts shared out among the ranks of a block (expert parallelism): rank j of K holds experts
// [j E/K, (j + 1) E/K). Each token's row travels once to every rank that holds an expert it chose, with its
// gates there; what comes back is one row, the weighted sum over that rank's experts (Eq. 1's sum over a
// part of them). No token is dropped; ranks without tokens for others, and experts without tokens, take part
// like all.
#pragma once

#include "dtopp/distributed/collectives/collectives.h"

namespace dtopp {

class ExpertExchange {
 public:
  // ranks: the block, which serves nothing else. reproducible: each rank's rows are computed by themselves
  // and their weight gradients added along the tree (tree_sum.h), so that the bits are those of one rank that
  // holds all experts: of a step where K is a power of two that divides E, in fp32.
  ExpertExchange(Collectives& ranks, bool reproducible) : ranks_(ranks), reproducible_(reproducible) {}

  // moe_ffn (ops/moe_ffn/moe_ffn.h), with all of the layer's gates, [T, E], and the weights of this rank's
  // experts, [E/K, …]. Differentiable likewise: weights have the gradient of the rows of all ranks. T may be
  // 0: a rank without a micro-batch serves the others so. Collective, the backward pass too.
  at::Tensor operator()(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                        const at::Tensor& down_proj) const;

 private:
  Collectives& ranks_;
  bool reproducible_;
};

}  // namespace dtopp
