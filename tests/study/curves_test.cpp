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
  history.series["train/active_flops"] = {{2, 4}, {3200, 7200}};
  history.series["throughput/seconds"] = {{2, 4}, {4, 6}};
  history.series["train/loss"] = {{2, 4}, {6, 5}};
  history.series["val/loss"] = {{0, 3, 4}, {9, 8, 7}};
  return history;
}

TEST(PointsOf, lie_where_the_run_had_taken_so_much) {
  EXPECT_THAT(points_of(history(), "train/loss", CurveAxis::kTokens).x, ElementsAre(200, 400));
  EXPECT_THAT(points_of(history(), "train/loss", CurveAxis::kActiveFlops).x, ElementsAre(3200, 7200));
  EXPECT_THAT(points_of(history(), "train/loss", CurveAxis::kSeconds).x, ElementsAre(4, 6));
  const Points validation = points_of(history(), "val/loss", CurveAxis::kActiveFlops);
  EXPECT_THAT(validation.x, ElementsAre(0, 5200, 7200));
  EXPECT_THAT(validation.y, ElementsAre(9, 8, 7));
  EXPECT_THAT(points_of(history(), "none", CurveAxis::kTokens).x, IsEmpty());
}

TEST(PointsOf, are_none_where_the_run_does_not_log_the_axis) {
  runs::RunHistory other = history();
  other.series.erase("train/active_flops");
  EXPECT_THAT(points_of(other, "train/loss", CurveAxis::kActiveFlops).x, IsEmpty());
  EXPECT_THAT(points_of(other, "train/loss", CurveAxis::kSeconds).x, ElementsAre(4, 6));
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

TEST(MeanCurve, averages_neighbors_of_many_points) {
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
