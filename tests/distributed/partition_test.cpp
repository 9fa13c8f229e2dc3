#include "dtopp/distributed/partition.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace dtopp {
namespace {

RC_GTEST_PROP(PartitionProperty, every_element_is_kept_once_in_units_that_ranks_do_not_change, ()) {
  const auto elements = *rc::gen::inRange<int64_t>(0, int64_t{1} << *rc::gen::inRange(1, 40));
  const auto index = *rc::gen::inRange<int64_t>(0, 100);
  const auto ranks = *rc::gen::inRange<int64_t>(1, 130);
  const Partition partition(elements, index, ranks);
  RC_ASSERT(partition.unit() == Partition(elements, index, 1).unit());
  RC_ASSERT(partition.unit() % 64 == 0);
  RC_ASSERT(partition.num_units() <= 1024);
  int64_t kept = 0, begins_at_0 = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const ElementRange range = partition.range(rank), units = partition.units(rank);
    RC_ASSERT(range.size() >= 0 && range.size() <= units.size() * partition.unit());
    RC_ASSERT(range.begin == std::min(units.begin * partition.unit(), elements));
    kept += range.size();
    begins_at_0 += range.size() > 0 && range.begin == 0 ? 1 : 0;
  }
  RC_ASSERT(kept == elements);
  RC_ASSERT(begins_at_0 == (elements > 0 ? 1 : 0));
}

TEST(Partition, gives_small_parameters_to_different_ranks) {
  for (int64_t index = 0; index < 4; ++index) {
    const Partition partition(100, index, 4);
    int64_t keepers = 0;
    for (int64_t rank = 0; rank < 4; ++rank) keepers += partition.range(rank).size() == 100 ? 1 : 0;
    EXPECT_EQ(keepers, 1);
    EXPECT_EQ(partition.range((7 - index) % 4).size(), 100);
  }
}

TEST(Partition, shares_large_ones_out_evenly) {
  const Partition partition(int64_t{1} << 30, 3, 64);
  for (int64_t rank = 0; rank < 64; ++rank) EXPECT_EQ(partition.range(rank).size(), int64_t{1} << 24);
}

}  // namespace
}  // namespace dtopp
