// How the ranks of a run lie: on nodes, and in blocks that share the experts of every layer.
#pragma once

#include <cstdint>

namespace dtopp {

struct RankLayout {
  int64_t ranks = 1;
  int64_t nodes = 1;            // each has ranks / nodes consecutive ranks
  int64_t expert_parallel = 1;  // consecutive ranks of a block, which lies on one node; each holds as many of
                                // every layer's experts

  int64_t node_ranks() const { return ranks / nodes; }
  // Ranks that hold the same experts: one of each block.
  int64_t replicas() const { return ranks / expert_parallel; }
};

}  // namespace dtopp
