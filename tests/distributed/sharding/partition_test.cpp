#include "dtopp/distributed/sharding/partition.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace dtopp {
namespace {

RC_GTEST_PROP(PartitionProperty, every_element_is_kept_once_in_units_that_no_grid_changes, ()) {
  const auto ep_size = *rc::gen::inRange<int64_t>(1, 9), nodes = *rc::gen::inRange<int64_t>(1, 5);
  const auto edp_size = nodes * *rc::gen::inRange<int64_t>(1, 20);
  const auto pieces = *rc::gen::element<int64_t>(1, ep_size, 3 * ep_size);
  const auto elements = pieces * *rc::gen::inRange<int64_t>(0, int64_t{1} << *rc::gen::inRange(1, 34));
  const auto index = *rc::gen::inRange<int64_t>(0, 100);
  const Partition partition(elements, pieces, index, {ep_size, edp_size, nodes});
  const Partition alone(elements, pieces, index, {});
  RC_ASSERT(partition.num_units() == alone.num_units());
  RC_ASSERT(partition.num_units() <= std::max<int64_t>(1024, pieces));
  RC_ASSERT(alone.kept(0).size() == elements);

  std::vector<ElementRange> kept;
  for (int64_t rank = 0; rank < ep_size * edp_size; ++rank) {
    const ElementRange mine = partition.kept(rank), slice = partition.slice(rank % ep_size);
    const ElementRange part = partition.part(rank);
    RC_ASSERT(slice.begin <= part.begin && part.begin <= mine.begin);
    RC_ASSERT(mine.end <= part.end && part.end <= slice.end);
    const ElementRange units = partition.kept_units(rank);
    int64_t in_units = 0;
    for (int64_t unit = units.begin; unit < units.end; ++unit) {
      RC_ASSERT(partition.unit(unit).begin == alone.unit(unit).begin);
      RC_ASSERT(partition.unit(unit).end == alone.unit(unit).end);
      in_units += partition.unit(unit).size();
    }
    RC_ASSERT(in_units == mine.size());
    if (mine.size() > 0) kept.push_back(mine);
  }
  std::ranges::sort(kept, {}, &ElementRange::begin);
  int64_t end = 0;
  for (const ElementRange& range : kept) {
    RC_ASSERT(range.begin == end);
    end = range.end;
  }
  RC_ASSERT(end == elements);
}

TEST(Partition, shares_pieces_out_to_places_whole) {
  const Partition experts(8 * 100'000, 8, 3, {4, 2});
  for (int64_t ep_rank = 0; ep_rank < 4; ++ep_rank) {
    EXPECT_EQ(experts.slice(ep_rank).begin, ep_rank * 200'000);
    EXPECT_EQ(experts.slice(ep_rank).size(), 200'000);
  }
}

TEST(Partition, gives_small_parameters_to_different_ranks) {
  for (const ParallelDims& dims :
       {ParallelDims{1, 4}, ParallelDims{2, 2}, ParallelDims{4, 1}, ParallelDims{1, 4, 2}}) {
    std::vector<int64_t> keepers(4);
    for (int64_t index = 0; index < 4; ++index) {
      for (int64_t rank = 0; rank < 4; ++rank)
        keepers[static_cast<size_t>(rank)] += Partition(100, 1, index, dims).kept(rank).size() == 100 ? 1 : 0;
    }
    EXPECT_EQ(keepers, (std::vector<int64_t>{1, 1, 1, 1}));
  }
}

TEST(Partition, shares_large_ones_out_evenly) {
  const Partition partition(int64_t{1} << 30, 1, 3, {4, 16});
  for (int64_t rank = 0; rank < 64; ++rank) EXPECT_EQ(partition.kept(rank).size(), int64_t{1} << 24);
}

}  // namespace
}  // namespace dtopp
