// A tensor whose elements are shared out among ranks.
#pragma once

#include <vector>

#include "dtopp/distributed/collectives.h"
#include "dtopp/distributed/partition.h"

namespace dtopp {

// The elements each rank of a group keeps, by rank; every element is kept by one.
using Shards = std::vector<ElementRange>;

inline constexpr int64_t kEveryRank = -1;

// Elements [piece.begin, piece.end) of a tensor of which this rank has `kept`: on rank `root`, or with
// kEveryRank on all; undefined elsewhere. On one rank without a copy. Collective.
at::Tensor collect(Collectives& ranks, const Shards& shards, const at::Tensor& kept,
                   const ElementRange& piece, int64_t root);

}  // namespace dtopp
