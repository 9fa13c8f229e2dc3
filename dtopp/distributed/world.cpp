#include "dtopp/distributed/world.h"

#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace dtopp {

World make_world(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size,
                 int64_t expert_parallel, const GlooOptions& options,
                 const std::shared_ptr<CollectiveCounts>& counts) {
  const auto group = [&](const char* name,
                         const std::vector<int64_t>& ranks) -> std::shared_ptr<Collectives> {
    auto group = make_gloo_collectives(store, name, rank, ranks, options);
    if (!counts || ranks.size() == 1) return group;
    return std::make_shared<CountingCollectives>(std::move(group), counts);
  };
  World world;
  world.counts = counts;
  world.all = group("all", all_ranks(size));
  expert_parallel = std::stoll(broadcast_bytes(*world.all, std::to_string(expert_parallel), 0, "start"));
  world.replicas = group("replicas", ranks_across_blocks(rank, expert_parallel, size));
  world.block = group("block", ranks_of_block(rank, expert_parallel));
  world.experts = group("experts", ranks_of_block(rank, expert_parallel));
  return world;
}

}  // namespace dtopp
