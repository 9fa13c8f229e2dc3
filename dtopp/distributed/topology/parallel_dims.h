// Describes how the ranks of a run are arranged: EP groups of consecutive ranks, on nodes.
//
// Collective:    no
#pragma once

#include <bit>
#include <cstdint>

namespace dtopp::distributed {

// An EP group is `ep_size` consecutive ranks, which split the experts of a layer. Ranks with the same EP rank
// hold the same experts and form an EDP group. Each of `nodes` holds equally many consecutive EP groups. EDP
// ranks reduce within a node first. Example with EP size 2, EDP size 4 and 2 nodes:
//
//            node 0          node 1
// EP rank 0  ranks 0, 2      ranks 4, 6     one EDP group: 0, 2, 4, 6
// EP rank 1  ranks 1, 3      ranks 5, 7     one EDP group: 1, 3, 5, 7
struct ParallelDims {
  int64_t world_size = 1;
  int64_t nodes = 1;  // divides the EDP size, unless the caller's values are still unchecked (plan)
  int64_t ep_size = 1;

  constexpr int64_t node_size() const { return world_size / nodes; }  // ranks per node
  constexpr int64_t edp_size() const { return world_size / ep_size; }
  constexpr int64_t local_edp_size() const { return edp_size() / nodes; }
  constexpr int64_t ep_rank(int64_t rank) const { return rank % ep_size; }
  constexpr int64_t edp_rank(int64_t rank) const { return rank / ep_size; }
  constexpr int64_t rank(int64_t ep_rank, int64_t edp_rank) const { return edp_rank * ep_size + ep_rank; }

  // These dims with the nodes that the process groups use: 1 if EP groups would straddle nodes, if nodes are
  // uneven, or if the EDP size per node is not a power of two. In the last case sums of the nodes' sums would
  // differ from the aligned tree (tree_sum.h).
  constexpr ParallelDims with_nested_nodes() const {
    const bool nested = world_size % nodes == 0 && node_size() % ep_size == 0 &&
                        std::has_single_bit(static_cast<uint64_t>(node_size() / ep_size));
    return {world_size, nested ? nodes : 1, ep_size};
  }
};

constexpr ParallelDims ep_by_edp(int64_t ep_size, int64_t edp_size, int64_t nodes = 1) {
  return {ep_size * edp_size, nodes, ep_size};
}

}  // namespace dtopp::distributed
