#include "dtopp/distributed/sharding/shards.h"

#include <algorithm>

namespace dtopp::distributed {

namespace {

// The requested elements that `rank` stores.
ElementRange part_of(const ShardRequest& request, int64_t rank) {
  if (!request.tensor) return {};
  const ElementRange range = request.tensor->layout->local_shard(rank);
  const int64_t begin = std::clamp(range.begin, request.range.begin, request.range.end);
  return {begin, std::clamp(range.end, begin, request.range.end)};
}

at::Tensor local_part(const ShardRequest& request, int64_t rank) {
  const ElementRange part = part_of(request, rank);
  const int64_t first = part.size() == 0 ? 0 : part.begin - request.tensor->layout->local_shard(rank).begin;
  return request.tensor->local_shard.narrow(0, first, part.size());
}

}  // namespace

at::Tensor gather_shards(Collectives& ranks, const std::vector<ShardRequest>& by_rank) {
  const ShardRequest& mine = by_rank.at(static_cast<size_t>(ranks.rank()));
  if (ranks.size() == 1) return mine.tensor ? local_part(mine, 0) : at::Tensor();
  Splits splits;
  at::TensorOptions options;
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    const ShardRequest& request = by_rank[static_cast<size_t>(rank)];
    splits.in.push_back(part_of(request, ranks.rank()).size());
    splits.out.push_back(part_of(mine, rank).size());
    if (!request.tensor) continue;
    options = request.tensor->local_shard.options();
    if (splits.in.back() > 0) parts.push_back(local_part(request, ranks.rank()));
  }
  const at::Tensor sent = parts.empty()       ? at::empty({0}, options)
                          : parts.size() == 1 ? parts.front()
                                              : at::cat(parts);
  parts.clear();
  const at::Tensor received = at::empty({mine.range.size()}, options);
  ranks.all_to_all(received, sent, splits, "collect").wait();
  if (!mine.tensor) return {};
  at::Tensor ordered = at::empty_like(received);
  int64_t at = 0;
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    const ElementRange part = part_of(mine, rank);
    ordered.narrow(0, part.begin - mine.range.begin, part.size()).copy_(received.narrow(0, at, part.size()));
    at += part.size();
  }
  return ordered;
}

}  // namespace dtopp::distributed
