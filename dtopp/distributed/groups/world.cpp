#include "dtopp/distributed/groups/world.h"

#include <sstream>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace dtopp {
namespace {

RankGrid first_rank_grid(Collectives& all, RankGrid grid) {
  std::ostringstream text;
  text << grid.places << ' ' << grid.replicas << ' ' << grid.nodes;
  std::istringstream(broadcast_bytes(all, text.str(), /*root=*/0, "start")) >> grid.places >> grid.replicas >>
      grid.nodes;
  return grid;
}

}  // namespace

World make_world(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, const RankGrid& own_grid,
                 const GlooOptions& options, const std::shared_ptr<CollectiveCounts>& counts) {
  const auto group = [&](const char* name,
                         const std::vector<int64_t>& ranks) -> std::shared_ptr<Collectives> {
    auto group = make_gloo_collectives(store, name, rank, ranks, options);
    if (!counts || ranks.size() == 1) return group;
    return std::make_shared<CountingCollectives>(std::move(group), counts);
  };
  World world;
  world.counts = counts;
  world.all = group("all", all_ranks(own_grid.size()));
  const RankGrid grid = first_rank_grid(*world.all, own_grid);
  const int64_t node = grid.size() / grid.nodes, first = rank / node * node;
  std::vector<int64_t> replicas = ranks_across_blocks(rank, grid.places, node);
  for (int64_t& replica : replicas) replica += first;
  world.replicas = group("replicas", replicas);
  world.nodes = group("nodes", ranks_across_blocks(rank, node, grid.size()));
  world.block = group("block", ranks_of_block(rank, grid.places));
  world.experts = group("experts", ranks_of_block(rank, grid.places));
  return world;
}

}  // namespace dtopp
