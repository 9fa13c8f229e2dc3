#include "dtopp/distributed/groups/process_groups.h"

#include <sstream>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace dtopp::distributed {
namespace {

ParallelDims first_rank_dims(Collectives& all, ParallelDims dims) {
  std::ostringstream text;
  text << dims.nodes << ' ' << dims.ep_size;
  std::istringstream(broadcast_bytes(all, text.str(), /*root=*/0, "start")) >> dims.nodes >> dims.ep_size;
  return dims;
}

}  // namespace

ProcessGroups make_process_groups(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                  const ParallelDims& own_dims, const GlooOptions& options,
                                  const std::shared_ptr<CollectiveCounts>& counts) {
  const auto group = [&](const char* name,
                         const std::vector<int64_t>& ranks) -> std::shared_ptr<Collectives> {
    auto group = make_gloo_collectives(store, name, rank, ranks, options);
    if (!counts || ranks.size() == 1) return group;
    return std::make_shared<CountingCollectives>(std::move(group), counts);
  };
  ProcessGroups groups;
  groups.traffic = counts;
  groups.world = group("world", all_ranks(own_dims.world_size));
  const ParallelDims dims = first_rank_dims(*groups.world, own_dims);
  const int64_t node = dims.node_size(), first = rank / node * node;
  std::vector<int64_t> intra_node = edp_ranks(rank, dims.ep_size, node);
  for (int64_t& other : intra_node) other += first;
  groups.edp_intra_node = group("edp_intra_node", intra_node);
  groups.edp_inter_node = group("edp_inter_node", edp_ranks(rank, node, dims.world_size));
  groups.ep = group("ep", ep_ranks(rank, dims.ep_size));
  groups.saving = make_gloo_collectives(store, "saving", rank, all_ranks(dims.world_size), options);
  groups.ep_dispatch = group("ep_dispatch", ep_ranks(rank, dims.ep_size));
  return groups;
}

}  // namespace dtopp::distributed
