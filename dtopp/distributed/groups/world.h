// The ranks of a run, and the groups in which they exchange.
#pragma once

#include "dtopp/distributed/collectives/counting_collectives.h"
#include "dtopp/distributed/collectives/gloo_collectives.h"
#include "dtopp/distributed/sharding/partition.h"

namespace dtopp {

// Each group serves one purpose, so that what one waits for never stands behind what another has started.
struct World {
  std::shared_ptr<Collectives> all = std::make_shared<SingleRank>();
  // The ranks of this one's place on its node, which hold the same experts; and those that stand on other
  // nodes as it does on its own: gradients and parameters.
  std::shared_ptr<Collectives> replicas = std::make_shared<SingleRank>();
  std::shared_ptr<Collectives> nodes = std::make_shared<SingleRank>();
  // The ranks of this one's block, which share out the experts: gradients and parameters that all of them
  // hold; and tokens on their way to experts and back.
  std::shared_ptr<Collectives> block = std::make_shared<SingleRank>();
  std::shared_ptr<Collectives> experts = std::make_shared<SingleRank>();
  std::shared_ptr<const CollectiveCounts> counts{};  // of all groups; none where nobody counts
  int64_t ranks_here = 1;                            // on this machine
  at::Device device = at::kCPU;  // where this rank computes: of what groups exchange besides the CPU's

  int64_t rank() const { return all->rank(); }
  int64_t size() const { return all->size(); }
  RankGrid grid() const { return {block->size(), replicas->size() * nodes->size(), nodes->size()}; }
};

// Connects this rank to the others of the grid, of which rank 0's holds for all. `counts`, where it is given,
// learns of what takes place in groups of several. Errors as make_gloo_collectives. Collective.
World make_world(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, const RankGrid& grid,
                 const GlooOptions& options, const std::shared_ptr<CollectiveCounts>& counts = nullptr);

}  // namespace dtopp
