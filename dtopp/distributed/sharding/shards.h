// A tensor whose elements are shared out among ranks.
#pragma once

#include <vector>

#include "dtopp/distributed/collectives/collectives.h"
#include "dtopp/distributed/sharding/partition.h"

namespace dtopp {

// The elements each rank of a group keeps, by rank; every element is kept by one.
using Shards = std::vector<ElementRange>;

// As parameters and moments are kept.
struct ShardedTensor {
  const Partition* partition = nullptr;
  at::Tensor kept;  // [elements] of this rank
};

// Elements [begin, end) that a rank is to get of a tensor; nothing where there is none.
struct WantedPiece {
  const ShardedTensor* tensor = nullptr;
  ElementRange piece{};
};

// Brings each rank the piece it wants, by rank, the same on all of them; the tensors are of one type and
// device. Returns this rank's, [elements], undefined where it wants none; on one rank without a copy. Memory:
// what this rank sends, unless that goes to one rank alone, and up to twice what it gets. Collective.
at::Tensor collect(Collectives& ranks, const std::vector<WantedPiece>& by_rank);

}  // namespace dtopp
