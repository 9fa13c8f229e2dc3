// Runs the experts of a layer that are split over the ranks of an EP group: dispatch, expert FFN, combine.
//
// EP rank j of K holds experts [j E/K, (j + 1) E/K). The dispatch sends a token's row once to every rank that
// holds one of its experts, together with the gates of that rank's experts. That rank returns one row: the
// weighted sum over its experts (a part of the sum in Eq. 1). The token's rank adds these rows. Example with
// E = 4 and K = 2, for a token x of rank 0 with gates [0.5, 0.2, 0, 0.3]:
//
//             dispatch                         expert FFN                      combine
// rank 0:  x, gates [0.5, 0.2]  -->  rank 0:  0.5 f0(x) + 0.2 f1(x)  -->  rank 0:  y = sum
//          x, gates [0,   0.3]  -->  rank 1:  0.3 f3(x)              -->           of both rows
//
// No token is dropped. A rank without tokens and an expert without tokens take part in every exchange.
//
// Shapes:        x_TD [T, D]; gates_TE [T, E]; gate_up_proj [E/K, …], down_proj [E/K, …] -> y_TD [T, D]
// Throws:        c10::Error if the gates do not match the experts of the EP group
// Collective:    every rank of the EP group, in the same order, in the backward pass too
// Source:        paper, Eq. 1
#pragma once

#include "dtopp/distributed/collectives.h"
#include "dtopp/moe/experts.h"

namespace dtopp::moe {

class AllToAllTokenDispatcher final : public ExpertBackend {
 public:
  // `ranks` is the EP group, which this object must use alone.
  //
  // `reproducible` computes each source rank's rows separately. It adds their weight gradients, and the rows
  // that a token gets back, along the tree (tree_sum.h). In fp32, a step then has the bits of one rank that
  // holds all experts, if K is a power of two that divides E.
  AllToAllTokenDispatcher(distributed::Collectives& ranks, bool reproducible)
      : ranks_(ranks), reproducible_(reproducible) {}

  // Computes moe_ffn (ops/moe_ffn/moe_ffn.h) of this rank's tokens with all gates of the layer and this
  // rank's expert weights. It is differentiable: weight gradients include the rows of all ranks. T may be 0
  // for a rank without a micro-batch, which still serves the other ranks' tokens. `recompute` adds no
  // communication: the received rows are stored.
  at::Tensor forward(int64_t layer, const at::Tensor& x_TD, const at::Tensor& gates_TE,
                     const at::Tensor& gate_up_proj, const at::Tensor& down_proj, bool recompute) override;

 private:
  distributed::Collectives& ranks_;
  bool reproducible_;
};

}  // namespace dtopp::moe
