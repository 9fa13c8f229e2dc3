// Stores a tensor as one shard per rank, and gathers ranges of such tensors.
//
// Throws:        RankLost or ResourceError as Collectives
// Collective:    gather_shards, on every rank of the run
#pragma once

#include <vector>

#include "dtopp/distributed/collectives/collectives.h"
#include "dtopp/distributed/sharding/shard_layout.h"

namespace dtopp::distributed {

// One rank's part of a parameter or moment.
struct ShardedTensor {
  const ShardLayout* layout = nullptr;
  at::Tensor local_shard;  // the elements of layout->local_shard(rank), [elements]
};

// A request of one rank for elements [begin, end) of a tensor. Without a tensor the rank requests nothing.
struct ShardRequest {
  const ShardedTensor* tensor = nullptr;
  ElementRange range{};
};

// Sends each rank the elements that it requests: by_rank[r] is the request of rank r.
//
// All ranks pass the same requests, each rank with its own local shards. The tensors share one type and
// device. `ranks` are the ranks of the layouts. Peak memory is the elements sent (none if one rank gets them
// all) plus twice the elements received.
//
// Returns:       this rank's elements [elements], undefined without a request; a view if the group has one
//                rank
at::Tensor gather_shards(Collectives& ranks, const std::vector<ShardRequest>& by_rank);

}  // namespace dtopp::distributed
