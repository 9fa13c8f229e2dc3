#include "dtopp/study/curves.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtopp::study {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Lines of steps 2 and 4 (logging.every 2), 100 tokens per step, and validations at steps 0, 3 and 4.
runs::RunHistory history() {
  runs::RunHistory history;
  history.tokens = {{2, 4}, {200, 400}};
  history.series["moe/active_experts"] = {{2, 4}, {3, 5}};
  history.series["throughput/tokens_per_second"] = {{2, 4}, {50, 100}};
  history.series["train/loss"] = {{2, 4}, {6, 5}};
  history.series["val/loss"] = {{0, 3, 4}, {9, 8, 7}};
  return history;
}

const TokenCost kCost{.fixed = 10, .per_expert = 2};

TEST(PointsOf, lie_where_the_run_had_taken_so_much) {
  EXPECT_THAT(points_of(history(), "train/loss", CurveAxis::kTokens, kCost).x, ElementsAre(200, 400));
  // 200 tokens with 3 experts, then 200 with 5.
  EXPECT_THAT(points_of(history(), "train/loss", CurveAxis::kActiveFlops, kCost).x, ElementsAre(3200, 7200));
  EXPECT_THAT(points_of(history(), "train/loss", CurveAxis::kSeconds, kCost).x, ElementsAre(4, 6));
  const Points validation = points_of(history(), "val/loss", CurveAxis::kActiveFlops, kCost);
  EXPECT_THAT(validation.x, ElementsAre(0, 5200, 7200));
  EXPECT_THAT(validation.y, ElementsAre(9, 8, 7));
  EXPECT_THAT(points_of(history(), "none", CurveAxis::kTokens, kCost).x, IsEmpty());
}

TEST(PointsOf, take_the_plan_where_a_run_counts_no_experts) {
  runs::RunHistory dense = history();
  dense.series.erase("moe/active_experts");
  const TokenCost cost{.fixed = 10, .per_expert = 2, .planned_experts = 4};
  EXPECT_THAT(points_of(dense, "train/loss", CurveAxis::kActiveFlops, cost).x, ElementsAre(3600, 7200));
}

TEST(MeanCurve, keeps_the_points_that_all_runs_have) {
  const Curve curve = mean_curve({{{1, 2, 4}, {3, 5, 7}}, {{1, 2, 4}, {5, 5, 9}}, {}});
  EXPECT_THAT(curve.x, ElementsAre(1, 2, 4));
  EXPECT_EQ(curve.y[0].mean, 4);
  EXPECT_EQ(curve.y[1].half_width, 0.0);
  EXPECT_EQ(curve.y[2].n, 2);
}

TEST(MeanCurve, meets_on_straight_lines_over_what_runs_have_in_common) {
  // y = 2 x and y = 2 x + 2, sampled at different x.
  const Curve curve = mean_curve({{{0, 1, 5}, {0, 2, 10}}, {{1, 3, 4}, {4, 8, 10}}});
  EXPECT_THAT(curve.x, ElementsAre(1, 2.5, 4));
  for (size_t i = 0; i < 3; ++i) EXPECT_DOUBLE_EQ(*curve.y[i].mean, 2 * curve.x[i] + 1);
}

TEST(MeanCurve, averages_neighbours_of_many_points) {
  Points many;
  for (int i = 0; i < 100000; ++i) {
    many.x.push_back(i);
    many.y.push_back(3 * i + (i % 2 == 0 ? 1 : -1));
  }
  const Curve curve = mean_curve({many});
  ASSERT_THAT(curve.x, SizeIs(kMostPoints));
  for (size_t i = 0; i < kMostPoints; ++i) {
    EXPECT_NEAR(*curve.y[i].mean, 3 * curve.x[i], 1e-6);
    EXPECT_FALSE(curve.y[i].half_width);
  }
}

TEST(MeanCurve, of_nothing_is_empty) {
  EXPECT_THAT(mean_curve({}).x, IsEmpty());
  // The curves share no x.
  EXPECT_THAT(mean_curve({{{0, 1}, {0, 1}}, {{2, 3}, {0, 1}}}).x, IsEmpty());
}

}  // namespace
}  // namespace dtopp::study
