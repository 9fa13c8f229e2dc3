#include "dtopp/distributed/shard_layout.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/distributed/rank_threads.h"

namespace dtopp::distributed {
namespace {

RC_GTEST_PROP(ShardLayoutProperty, every_element_is_kept_once_in_units_that_no_grid_changes, ()) {
  const auto ep_size = *rc::gen::inRange<int64_t>(1, 9), nodes = *rc::gen::inRange<int64_t>(1, 5);
  const auto edp_size = nodes * *rc::gen::inRange<int64_t>(1, 20);
  const auto num_experts = *rc::gen::element<int64_t>(1, ep_size, 3 * ep_size);
  const auto elements = num_experts * *rc::gen::inRange<int64_t>(0, int64_t{1} << *rc::gen::inRange(1, 34));
  const auto index = *rc::gen::inRange<int64_t>(0, 100);
  const auto policy = *rc::gen::element(ShardPolicy::kElements, ShardPolicy::kWholeMatrix);
  const ShardLayout layout(elements, num_experts, index, ep_by_edp(ep_size, edp_size, nodes), policy);
  const ShardLayout alone(elements, num_experts, index, {}, policy);
  RC_ASSERT(layout.num_chunks() == alone.num_chunks());
  RC_ASSERT(layout.num_chunks() <= std::max<int64_t>(1024, num_experts));
  RC_ASSERT(alone.local_shard(0).size() == elements);

  std::vector<ElementRange> local_shard;
  for (int64_t rank = 0; rank < ep_size * edp_size; ++rank) {
    const ElementRange mine = layout.local_shard(rank), ep_shard = layout.ep_shard(rank % ep_size);
    const ElementRange node_shard = layout.node_shard(rank);
    RC_ASSERT(ep_shard.begin <= node_shard.begin && node_shard.begin <= mine.begin);
    RC_ASSERT(mine.end <= node_shard.end && node_shard.end <= ep_shard.end);
    const ElementRange chunks = layout.local_chunks(rank);
    int64_t in_chunks = 0;
    for (int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
      RC_ASSERT(layout.chunk(chunk).begin == alone.chunk(chunk).begin);
      RC_ASSERT(layout.chunk(chunk).end == alone.chunk(chunk).end);
      in_chunks += layout.chunk(chunk).size();
    }
    RC_ASSERT(in_chunks == mine.size());
    if (mine.size() > 0) local_shard.push_back(mine);
  }
  std::ranges::sort(local_shard, {}, &ElementRange::begin);
  int64_t end = 0;
  for (const ElementRange& range : local_shard) {
    RC_ASSERT(range.begin == end);
    end = range.end;
  }
  RC_ASSERT(end == elements);
}

TEST(ShardLayout, shares_pieces_out_to_places_whole) {
  const ShardLayout experts(8 * 100'000, 8, 3, ep_by_edp(4, 2));
  for (int64_t ep_rank = 0; ep_rank < 4; ++ep_rank) {
    EXPECT_EQ(experts.ep_shard(ep_rank).begin, ep_rank * 200'000);
    EXPECT_EQ(experts.ep_shard(ep_rank).size(), 200'000);
  }
}

TEST(ShardLayout, keeps_matrices_whole_for_an_optimizer_that_needs_them) {
  for (const int64_t num_experts : {1, 8}) {
    const ShardLayout layout(num_experts * 100'000, num_experts, 3, ep_by_edp(2, 4),
                             ShardPolicy::kWholeMatrix);
    EXPECT_EQ(layout.num_chunks(), num_experts);
    for (int64_t rank = 0; rank < 8; ++rank) EXPECT_EQ(layout.local_shard(rank).size() % 100'000, 0);
  }
}

TEST(ShardLayout, gives_small_parameters_to_different_ranks) {
  for (const ParallelDims& dims : {ep_by_edp(1, 4), ep_by_edp(2, 2), ep_by_edp(4, 1), ep_by_edp(1, 4, 2)}) {
    std::vector<int64_t> keepers(4);
    for (int64_t index = 0; index < 4; ++index) {
      for (int64_t rank = 0; rank < 4; ++rank)
        keepers[static_cast<size_t>(rank)] +=
            ShardLayout(100, 1, index, dims).local_shard(rank).size() == 100 ? 1 : 0;
    }
    EXPECT_EQ(keepers, (std::vector<int64_t>{1, 1, 1, 1}));
  }
}

TEST(ShardLayout, shares_large_ones_out_evenly) {
  const ShardLayout layout(int64_t{1} << 30, 1, 3, ep_by_edp(4, 16));
  for (int64_t rank = 0; rank < 64; ++rank) EXPECT_EQ(layout.local_shard(rank).size(), int64_t{1} << 24);
}

}  // namespace

}  // namespace dtopp::distributed
