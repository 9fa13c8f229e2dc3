// How the ranks of a run lie: in blocks, which share out the experts of a layer, on nodes.
#pragma once

#include <bit>
#include <cstdint>

namespace dtopp {

// Ranks in blocks of `places` consecutive ones, which share out the experts of a layer (expert parallelism);
// the ranks of one place are replicas of each other. As many consecutive blocks lie on each of `nodes`, which
// divide the replicas; what replicas exchange goes among those of a node first.
struct RankGrid {
  int64_t places = 1, replicas = 1, nodes = 1;

  int64_t size() const { return places * replicas; }
  int64_t node_replicas() const { return replicas / nodes; }
  int64_t place(int64_t rank) const { return rank % places; }
  int64_t replica(int64_t rank) const { return rank / places; }
  int64_t rank(int64_t place, int64_t replica) const { return replica * places + place; }
};

// `ranks` on nodes of `node_ranks` consecutive ones, in blocks of `expert_parallel` that divide the ranks.
// All count as one node where blocks or nodes would lie across each other; and where a node's replicas are no
// power of two: sums of nodes' sums would not be the aligned tree (tree_sum.h).
inline RankGrid rank_grid(int64_t ranks, int64_t expert_parallel, int64_t node_ranks) {
  const auto node_replicas = static_cast<uint64_t>(node_ranks / expert_parallel);
  const bool nested =
      ranks % node_ranks == 0 && node_ranks % expert_parallel == 0 && std::has_single_bit(node_replicas);
  return {expert_parallel, ranks / expert_parallel, nested ? ranks / node_ranks : 1};
}

}  // namespace dtopp
