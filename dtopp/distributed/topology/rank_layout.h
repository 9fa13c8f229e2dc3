// Describes how the ranks of a run are distributed over nodes and over EP groups, which share the experts of
// every layer.
#pragma once

#include <cstdint>

namespace dtopp {

struct RankLayout {
  int64_t ranks = 1;
  int64_t nodes = 1;  // each has ranks / nodes consecutive ranks
  // Consecutive ranks per EP group, which is on one node. Each rank holds an equal share of every layer's
  // experts.
  int64_t expert_parallel = 1;

  int64_t node_ranks() const { return ranks / nodes; }
  // EDP size: the number of ranks with the same experts, one per EP group.
  int64_t edp_size() const { return ranks / expert_parallel; }
};

}  // namespace dtopp
