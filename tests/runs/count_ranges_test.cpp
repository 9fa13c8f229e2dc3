#include "dtopp/runs/count_ranges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtopp::runs {
namespace {

std::vector<std::string> names(int64_t most) {
  std::vector<std::string> names;
  for (const CountRange& range : count_ranges(most)) names.push_back(range.name());
  return names;
}

TEST(CountRanges, double_and_end_at_the_most) {
  EXPECT_THAT(names(1), testing::ElementsAre("1"));
  EXPECT_THAT(names(8), testing::ElementsAre("1", "2", "3-4", "5-8"));
  EXPECT_THAT(names(9), testing::ElementsAre("1", "2", "3-4", "5-8", "9"));
  EXPECT_THAT(names(48), testing::ElementsAre("1", "2", "3-4", "5-8", "9-16", "17-32", "33-48"));
}

TEST(CountRanges, leave_no_number_out) {
  int64_t next = 1;
  for (const CountRange& range : count_ranges(512)) {
    EXPECT_EQ(range.first, next);
    next = range.last + 1;
  }
  EXPECT_EQ(next, 513);
}

}  // namespace
}  // namespace dtopp::runs
