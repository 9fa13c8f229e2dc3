#include "dtopp/distributed/shard_layout.h"

namespace dtopp::distributed {
namespace {

constexpr int64_t kMinChunkSize = int64_t{1} << 14;
constexpr int64_t kMaxChunks = 1024;  // per parameter, unless it has more pieces
constexpr int64_t kAlignment = 64;    // elements; no vector instruction straddles two chunks

ElementRange part_of(const ElementRange& range, int64_t part, int64_t parts) {
  return {range.begin + range.size() * part / parts, range.begin + range.size() * (part + 1) / parts};
}

}  // namespace

ShardLayout::ShardLayout(int64_t elements, int64_t num_experts, int64_t index, const ParallelDims& dims,
                         ShardPolicy policy)
    : elements_(elements), num_experts_(num_experts), index_(index), dims_(dims) {
  const int64_t expert_size = elements / num_experts, most = std::max<int64_t>(kMaxChunks / num_experts, 1);
  const int64_t even = (expert_size + most - 1) / most;
  chunk_size_ = std::max(kMinChunkSize, (even + kAlignment - 1) / kAlignment * kAlignment);
  if (policy == ShardPolicy::kWholeMatrix) chunk_size_ = std::max<int64_t>(expert_size, 1);
  chunks_per_expert_ = (expert_size + chunk_size_ - 1) / chunk_size_;
}

ElementRange ShardLayout::chunk(int64_t chunk) const {
  const int64_t size = elements_ / num_experts_, expert = chunk / chunks_per_expert_;
  const int64_t begin = chunk % chunks_per_expert_ * chunk_size_;
  return {expert * size + begin, expert * size + std::min(begin + chunk_size_, size)};
}

ElementRange ShardLayout::ep_shard_chunks(int64_t ep_rank) const {
  if (num_experts_ == 1)
    return part_of({0, chunks_per_expert_}, (ep_rank + index_) % dims_.ep_size, dims_.ep_size);
  const ElementRange experts = part_of({0, num_experts_}, ep_rank, dims_.ep_size);
  return {experts.begin * chunks_per_expert_, experts.end * chunks_per_expert_};
}

ElementRange ShardLayout::node_shard_chunks(int64_t rank) const {
  const int64_t parts = dims_.local_edp_size(), turn = dims_.edp_rank(rank) + index_ / dims_.ep_size;
  return part_of(ep_shard_chunks(dims_.ep_rank(rank)), turn % parts, parts);
}

ElementRange ShardLayout::local_chunks(int64_t rank) const {
  const int64_t node = dims_.edp_rank(rank) / dims_.local_edp_size();
  const int64_t turn = node + index_ / (dims_.ep_size * dims_.local_edp_size());
  return part_of(node_shard_chunks(rank), turn % dims_.nodes, dims_.nodes);
}

Shards ShardLayout::shards_in_ep_group() const {
  Shards shards;
  for (int64_t ep_rank = 0; ep_rank < dims_.ep_size; ++ep_rank) shards.push_back(ep_shard(ep_rank));
  return shards;
}

Shards ShardLayout::shards_in_node(int64_t rank) const {
  const int64_t ep_rank = dims_.ep_rank(rank), size = dims_.local_edp_size();
  const int64_t first = dims_.edp_rank(rank) / size * size, start = ep_shard(ep_rank).begin;
  Shards shards;
  for (int64_t edp_rank = first; edp_rank < first + size; ++edp_rank)
    shards.push_back(node_shard(dims_.rank(ep_rank, edp_rank)).from(start));
  return shards;
}

Shards ShardLayout::shards_across_nodes(int64_t rank) const {
  const int64_t ep_rank = dims_.ep_rank(rank), size = dims_.local_edp_size();
  const int64_t start = node_shard(rank).begin;
  Shards shards;
  for (int64_t edp_rank = dims_.edp_rank(rank) % size; edp_rank < dims_.edp_size(); edp_rank += size)
    shards.push_back(local_shard(dims_.rank(ep_rank, edp_rank)).from(start));
  return shards;
}

ElementRange ShardLayout::elements_of(const ElementRange& chunks) const {
  const auto start = [&](int64_t of) { return of == num_chunks() ? elements_ : chunk(of).begin; };
  return chunks.size() == 0 ? ElementRange{start(chunks.begin), start(chunks.begin)}
                            : ElementRange{start(chunks.begin), chunk(chunks.end - 1).end};
}

}  // namespace dtopp::distributed
