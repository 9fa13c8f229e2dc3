// Computes the elements of a parameter that each rank stores: the main parameter, its moments and its
// gradient sum.
//
// A parameter is cut into chunks that are never split. A chunk has 16,384 elements, or more if the parameter
// would have over 1,024 chunks. No chunk contains elements of two experts. Every rank stores consecutive
// whole chunks. Values that are computed per chunk (an update, a norm) therefore have the same bits on every
// rank grid.
//
// The cut is nested: first over EP ranks, then over the EDP ranks of a node, then over nodes. Example with 16
// chunks on 8 ranks (index 0, no experts, EP size 2, EDP size 4, 2 nodes; ranks 0 to 3 are on node 0):
//
// chunk        0    1    2    3    4    5    6    7    8    9    10   11   12   13   14   15
// EP shard     [------------- EP rank 0 --------------][------------- EP rank 1 --------------]
// node shard   [--- ranks 0, 4 ---][--- ranks 2, 6 ---][--- ranks 1, 5 ---][--- ranks 3, 7 ---]
// local shard  [ rank 0 ][ rank 4 ][ rank 2 ][ rank 6 ][ rank 1 ][ rank 5 ][ rank 3 ][ rank 7 ]
//
// The parameter's index rotates these assignments: small parameters with few chunks then go to different
// ranks.
//
// Collective:    no
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace dtopp::distributed {

// An EP group is `ep_size` consecutive ranks, which split the experts of a layer. Ranks with the same EP rank
// hold the same experts and form an EDP group. Each of `nodes` holds equally many consecutive EP groups. EDP
// ranks reduce within a node first. Example with EP size 2, EDP size 4 and 2 nodes:
//
//            node 0          node 1
// EP rank 0  ranks 0, 2      ranks 4, 6     one EDP group: 0, 2, 4, 6
// EP rank 1  ranks 1, 3      ranks 5, 7     one EDP group: 1, 3, 5, 7
struct ParallelDims {
  int64_t world_size = 1;
  int64_t nodes = 1;  // divides the EDP size, unless the caller's values are still unchecked (plan)
  int64_t ep_size = 1;

  constexpr int64_t node_size() const { return world_size / nodes; }  // ranks per node
  constexpr int64_t edp_size() const { return world_size / ep_size; }
  constexpr int64_t local_edp_size() const { return edp_size() / nodes; }
  constexpr int64_t ep_rank(int64_t rank) const { return rank % ep_size; }
  constexpr int64_t edp_rank(int64_t rank) const { return rank / ep_size; }
  constexpr int64_t rank(int64_t ep_rank, int64_t edp_rank) const { return edp_rank * ep_size + ep_rank; }

  // These dims with the nodes that the process groups use: 1 if EP groups would straddle nodes, if nodes are
  // uneven, or if the EDP size per node is not a power of two. In the last case sums of the nodes' sums would
  // differ from the aligned tree (tree_sum.h).
  constexpr ParallelDims with_nested_nodes() const {
    const bool nested = world_size % nodes == 0 && node_size() % ep_size == 0 &&
                        std::has_single_bit(static_cast<uint64_t>(node_size() / ep_size));
    return {world_size, nested ? nodes : 1, ep_size};
  }
};

struct ElementRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  // The same range relative to element `first`.
  ElementRange from(int64_t first) const { return {begin - first, end - first}; }
};

// The elements that each rank of a group stores, by rank. Every element belongs to exactly one rank.
using Shards = std::vector<ElementRange>;

// The target size of a bucket, given the number of elements of all parameters: one sixteenth, from 16,384 to
// 41,943,040 (40 Mi). Small buckets overlap more with computation and need less memory; large ones amortize
// the latency.
inline int64_t bucket_elements(int64_t elements) {
  return std::clamp(elements / 16, int64_t{1} << 14, int64_t{40} << 20);
}

enum class ShardPolicy {
  kElements,     // ranks share the elements of a matrix
  kWholeMatrix,  // one rank holds a whole matrix; of experts, whole matrices of each expert
};

// Ranges are elements of the flattened parameter, unless a name ends in "chunks". A rank is one of the run.
class ShardLayout {
 public:
  // `index` is the parameter's index in the model. `num_experts` is the number of its experts, or 1 if it has
  // none. The EP size divides `num_experts`, and EP ranks get whole experts. Without experts, EP ranks share
  // the chunks.
  ShardLayout(int64_t elements, int64_t num_experts, int64_t index, const ParallelDims& dims,
              ShardPolicy policy = ShardPolicy::kElements);

  int64_t elements() const { return elements_; }
  int64_t num_chunks() const { return num_experts_ * chunks_per_expert_; }
  ElementRange chunk(int64_t chunk) const;
  // The EP shard: elements that the EDP ranks of one EP rank (`ep_rank`) share.
  ElementRange ep_shard(int64_t ep_rank) const { return elements_of(ep_shard_chunks(ep_rank)); }
  // The node shard: the part of the EP shard that this rank shares with its peers on other nodes.
  ElementRange node_shard(int64_t rank) const { return elements_of(node_shard_chunks(rank)); }
  // The local shard: the part of the node shard that this rank stores.
  ElementRange local_shard(int64_t rank) const { return elements_of(local_chunks(rank)); }
  ElementRange local_chunks(int64_t rank) const;

  // The shards over each group that `rank` reduces the parameter with, relative to the first element that the
  // group shares.
  Shards shards_in_ep_group() const;               // EP shards of the parameter
  Shards shards_in_node(int64_t rank) const;       // node shards of its EP shard, by EDP rank of its node
  Shards shards_across_nodes(int64_t rank) const;  // local shards of its node shard, by node

 private:
  ElementRange ep_shard_chunks(int64_t ep_rank) const;
  ElementRange node_shard_chunks(int64_t rank) const;
  ElementRange elements_of(const ElementRange& chunks) const;

  int64_t elements_, num_experts_, index_;
  ParallelDims dims_;
  int64_t chunk_size_ = 0, chunks_per_expert_ = 0;  // chunk_size_ in elements
};

}  // namespace dtopp::distributed
