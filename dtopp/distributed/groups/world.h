// Holds the ranks of a run and the groups in which they communicate.
//
// Throws:        UsageError or ResourceError as make_gloo_collectives
// Collective:    make_world, on every rank of the run
#pragma once

#include "dtopp/distributed/collectives/counting_collectives.h"
#include "dtopp/distributed/collectives/gloo_collectives.h"
#include "dtopp/distributed/sharding/partition.h"

namespace dtopp {

// Each group serves one purpose. Collectives of one purpose then never queue behind those of another.
struct World {
  std::shared_ptr<Collectives> all = std::make_shared<SingleRank>();
  // The EDP group, for gradients and parameters of this rank's EP shard: `replicas` are its ranks on this
  // node, `nodes` this rank's peers on the other nodes.
  std::shared_ptr<Collectives> replicas = std::make_shared<SingleRank>();
  std::shared_ptr<Collectives> nodes = std::make_shared<SingleRank>();
  // The EP group, twice: `block` for gradients and parameters that all its ranks hold, `experts` for the
  // dispatch and combine of tokens.
  std::shared_ptr<Collectives> block = std::make_shared<SingleRank>();
  std::shared_ptr<Collectives> experts = std::make_shared<SingleRank>();
  std::shared_ptr<const CollectiveCounts> counts{};  // of all groups; null if nothing is counted
  int64_t ranks_here = 1;                            // ranks on this machine
  at::Device device = at::kCPU;  // this rank's compute device, which the groups accept besides the CPU

  int64_t rank() const { return all->rank(); }
  int64_t size() const { return all->size(); }
  RankGrid grid() const { return {block->size(), replicas->size() * nodes->size(), nodes->size()}; }
};

// Connects this rank to the others. Rank 0's grid applies to all ranks. `counts`, if given, counts the
// collectives of all groups with several ranks. Collective.
World make_world(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, const RankGrid& grid,
                 const GlooOptions& options, const std::shared_ptr<CollectiveCounts>& counts = nullptr);

}  // namespace dtopp
