#include "dtopp/eval/activation_analysis.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtopp::eval {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<int64_t> groups_of(const std::vector<int64_t>& values, int64_t groups) {
  return equal_groups(values, groups);
}

TEST(EqualGroups, have_equal_sizes_in_ascending_order) {
  EXPECT_THAT(groups_of({60, 10, 50, 20, 40, 30}, 3), ElementsAre(2, 0, 2, 0, 1, 1));
}

TEST(EqualGroups, keep_equal_values_together) {
  // The middle of the four ones lies in the first half.
  EXPECT_THAT(groups_of({1, 1, 1, 1, 2, 3}, 2), ElementsAre(0, 0, 0, 0, 1, 1));
  EXPECT_THAT(groups_of({7, 7}, 10), ElementsAre(5, 5));
}

TEST(GroupByExperts, gives_means_and_errors_over_windows) {
  // Two windows, one number of experts: sums 2 and 7 of 2 and 1 losses; the mean is 3.
  const std::vector<ExpertGroup> groups = group_by_experts({{4, 4, 4}, {1, 1, 7}, {0, 0, 1}});
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].nll, 3);
  EXPECT_DOUBLE_EQ(*groups[0].standard_error, std::sqrt(2.0 * (4 * 4 + 4 * 4)) / 3);
  EXPECT_FALSE(group_by_experts({{4, 4}, {1, 2}, {0, 0}})[0].standard_error);
}

TEST(FormatTable, names_one_number_of_experts_once) {
  // Equal numbers, and numbers that look equal, over 2 and 2000 layers.
  EXPECT_THAT(format_table(NllByExperts{2, {{6, 6, 6}, {1, 1, 7}, {0, 0, 1}}, {}}), HasSubstr("\n3        "));
  EXPECT_THAT(format_table(NllByExperts{2000, {{6000, 6001}, {1, 7}, {0, 1}}, {}}), Not(HasSubstr("3-3")));
}

TEST(Spearman, is_that_of_the_ranks) {
  EXPECT_DOUBLE_EQ(*spearman({{1, 2, 3}, {0.1, 5, 900}, {0, 0, 0}}), 1);
  EXPECT_DOUBLE_EQ(*spearman({{3, 2, 1}, {0.1, 5, 900}, {0, 0, 0}}), -1);
  EXPECT_DOUBLE_EQ(*spearman({{1, 1, 2}, {1, 2, 3}, {0, 0, 0}}), std::sqrt(3.0) / 2);
  EXPECT_FALSE(spearman({{2, 2}, {1, 3}, {0, 0}}));
}

}  // namespace

}  // namespace dtopp::eval
