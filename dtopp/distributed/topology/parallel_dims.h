// Describes how the ranks of a run are arranged: EP groups of consecutive ranks, on nodes.
//
// Collective:    no
#pragma once

#include <bit>
#include <cstdint>

namespace dtopp {

// An EP group is `ep_size` consecutive ranks, which split the experts of a layer. Ranks with the same EP rank
// hold the same experts and form an EDP group. Each of `nodes` holds equally many consecutive EP groups;
// `nodes` divides the EDP size. EDP ranks reduce within a node first. Example with EP size 2, EDP size 4 and
// 2 nodes:
//
//            node 0          node 1
// EP rank 0  ranks 0, 2      ranks 4, 6     one EDP group: 0, 2, 4, 6
// EP rank 1  ranks 1, 3      ranks 5, 7     one EDP group: 1, 3, 5, 7
struct ParallelDims {
  int64_t ep_size = 1, edp_size = 1, nodes = 1;

  int64_t size() const { return ep_size * edp_size; }
  int64_t local_edp_size() const { return edp_size / nodes; }
  int64_t ep_rank(int64_t rank) const { return rank % ep_size; }
  int64_t edp_rank(int64_t rank) const { return rank / ep_size; }
  int64_t rank(int64_t ep_rank, int64_t edp_rank) const { return edp_rank * ep_size + ep_rank; }
};

// The grid of `ranks` on nodes of `node_ranks` consecutive ranks; `ep_size` divides `ranks`.
//
// It has one node if EP groups would straddle nodes or nodes are uneven. It also has one node if the EDP size
// per node is not a power of two: sums of the nodes' sums would differ from the aligned tree (tree_sum.h).
inline ParallelDims parallel_dims(int64_t ranks, int64_t ep_size, int64_t node_ranks) {
  const auto local_edp_size = static_cast<uint64_t>(node_ranks / ep_size);
  const bool nested =
      ranks % node_ranks == 0 && node_ranks % ep_size == 0 && std::has_single_bit(local_edp_size);
  return {ep_size, ranks / ep_size, nested ? ranks / node_ranks : 1};
}

}  // namespace dtopp
