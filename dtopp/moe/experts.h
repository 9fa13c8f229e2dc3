// Computes the experts of a layer on the ranks of an EP group, and predicts their capacity on one rank.
#pragma once

#include <algorithm>
#include <bit>
#include <span>

#include "dtopp/distributed/collectives.h"
#include "dtopp/ops/moe_ffn/moe_ffn.h"

namespace dtopp::moe {

// Predicts the capacity of each layer, so that the host does not wait for the number of token-expert pairs.
//
// A capacity is the number of pairs in the largest micro-batch of the last observed step, times a margin. The
// trainer runs a step again if a micro-batch exceeds a capacity. Capacities have few sizes and change rarely,
// so that the allocator can reuse the memory of the previous step. Example: 1000 pairs with margin 1.25 give
// a capacity of 1280; it stays while steps have 931 to 1137 pairs.

constexpr double kCapacityMargin = 1.25;

// `pairs` times the margin, rounded up to a step of 1/64 to 1/32 of the result.
inline int64_t round_up_capacity(double pairs, double margin = kCapacityMargin) {
  const int64_t least = static_cast<int64_t>(margin * pairs) + 1;
  const int64_t step = std::max<int64_t>(std::bit_floor(static_cast<uint64_t>(least)) / 32, 1);
  return (least + step - 1) / step * step;
}

class CapacityPredictor {
 public:
  // Predicts nothing: each micro-batch computes its own capacity.
  CapacityPredictor() = default;
  explicit CapacityPredictor(double margin) : margin_(margin) {}  // 0: the same

  // Capacity per layer; empty: each micro-batch computes its own.
  const std::vector<int64_t>& capacity_L() const { return capacity_L_; }
  int64_t capacity(int64_t layer) const { return capacity_L_.empty() ? 0 : capacity_L_.at(layer); }

  // Takes, per layer, the largest number of pairs in a micro-batch of a step, over all ranks. A capacity
  // stays while its spare part is between 0.5 and 1.5 times the margin's.
  void observe(std::span<const int64_t> max_assignments_L) {
    if (margin_ == 0) return;
    capacity_L_.resize(max_assignments_L.size(), -1);
    for (size_t l = 0; l < capacity_L_.size(); ++l) {
      const auto most = static_cast<double>(max_assignments_L[l]),
                 limit = static_cast<double>(capacity_L_[l]);
      const double spare = (margin_ - 1) * most;
      if (limit < most + 0.5 * spare || limit > most + 1.5 * spare)
        capacity_L_[l] = round_up_capacity(most, margin_);
    }
  }
  // Predicts nothing until the next observe(). For a step that exceeded a capacity.
  void forget() { capacity_L_.clear(); }

 private:
  double margin_ = 0;
  std::vector<int64_t> capacity_L_;
};

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

class AllToAllTokenDispatcher {
 public:
  // `ranks` is the EP group, which this object must use alone.
  //
  // `reproducible` computes each source rank's rows separately. It adds their weight gradients, and the rows
  // that a token gets back, along the tree (tree_sum.h). In fp32, a step then has the bits of one rank that
  // holds all experts, if K is a power of two that divides E.
  AllToAllTokenDispatcher(distributed::Collectives& ranks, bool reproducible)
      : ranks_(ranks), reproducible_(reproducible) {}

  // The arguments and the result of moe_ffn (ops/moe_ffn/moe_ffn.h), with this rank's experts as weights.
  // It is differentiable: weight gradients include the rows of all ranks. T may be 0 for a rank without a
  // micro-batch, which still serves the other ranks' tokens. `recompute` adds no communication: the received
  // rows are stored.
  Tensor forward(int64_t layer, const Tensor& x_TD, const Tensor& gates_TE, const Tensor& gate_up_proj,
                 const Tensor& down_proj, bool recompute);

 private:
  distributed::Collectives& ranks_;
  bool reproducible_;
};

}  // namespace dtopp::moe
