#include "dtopp/study/statistics.h"

#include <array>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/json.h"
#include "dtopp/base/random.h"

namespace dtopp::study {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
// The relative error allowed between two libraries that both aim at full precision in quantiles and tails.
constexpr double kLibraries = 1e-11;

#define EXPECT_CLOSE(actual, expected) \
  EXPECT_NEAR((actual).value(), (expected), kLibraries* std::abs(expected))

const nlohmann::json& golden() {
  static const nlohmann::json value =
      parse_json(read_file(DTOPP_SOURCE_DIR "/tests/study/statistics_golden.json"), "statistics_golden.json");
  return value;
}

TEST(Statistics, agree_with_scipy) {
  for (const auto& one : golden().at("cases")) {
    const auto values = one.at("values").get<std::vector<double>>();
    const auto baseline = one.at("baseline").get<std::vector<double>>();
    const Interval interval = mean_interval(values);
    EXPECT_EQ(interval.n, static_cast<int64_t>(values.size()));
    EXPECT_CLOSE(interval.mean, one.at("interval").at("mean").get<double>());
    EXPECT_CLOSE(interval.half_width, one.at("interval").at("half_width").get<double>());
    const PairedDifference difference = paired_difference(values, baseline);
    EXPECT_CLOSE(difference.mean, one.at("difference").at("mean").get<double>());
    EXPECT_CLOSE(difference.half_width, one.at("difference").at("half_width").get<double>());
    EXPECT_CLOSE(difference.p, one.at("difference").at("p").get<double>());
  }
}

TEST(MeanInterval, of_two_values_is_cauchy_wide) {
  // With one degree of freedom Student's t is the Cauchy distribution. Its quantile is tan(0.475 pi), and the
  // standard error of 1 and 3 is 1.
  const Interval interval = mean_interval(std::array{1.0, 3.0});
  EXPECT_CLOSE(interval.mean, 2.0);
  EXPECT_CLOSE(interval.half_width, std::tan(0.475 * std::acos(-1.0)));
}

TEST(MeanInterval, leaves_out_what_cannot_be_computed) {
  const Interval none = mean_interval({});
  EXPECT_FALSE(none.mean || none.half_width);
  EXPECT_EQ(none.n, 0);
  const Interval one = mean_interval(std::array{4.5});
  EXPECT_EQ(one.mean, 4.5);
  EXPECT_FALSE(one.half_width);
  const Interval broken = mean_interval(std::array{4.5, kNaN});
  EXPECT_FALSE(broken.mean || broken.half_width);
  EXPECT_EQ(broken.n, 2);
}

TEST(MeanInterval, of_equal_values_is_that_value_exactly) {
  const Interval interval = mean_interval(std::array{0.1, 0.1, 0.1});
  EXPECT_EQ(interval.mean, 0.1);
  EXPECT_EQ(interval.half_width, 0.0);
}

// Over 20,000 draws of n normal values the interval contains the true mean in 95 % of cases, with a standard
// deviation of 0.15 %.
TEST(MeanInterval, covers_the_mean_in_95_percent_of_cases) {
  constexpr int kDraws = 20000;
  for (const size_t n : {2, 3, 5, 10}) {
    const RandomStream stream(n, "coverage");
    std::vector<float> row(n);
    int covered = 0;
    for (int draw = 0; draw < kDraws; ++draw) {
      stream.normals(static_cast<uint64_t>(draw), row);
      const Interval interval = mean_interval(std::vector<double>(row.begin(), row.end()));
      covered += std::abs(interval.mean.value()) <= interval.half_width.value();
    }
    EXPECT_NEAR(covered / double{kDraws}, 0.95, 4 * 0.0015) << n;
  }
}

TEST(PairedDifference, without_spread_has_no_width_and_no_p) {
  for (const auto& difference : {paired_difference(std::array{1.5, 2.5, 3.5}, std::array{1.0, 2.0, 3.0}),
                                 // As doubles, 2.3 - 2.1 and 4.5 - 4.3 differ.
                                 paired_difference(std::array{2.3, 4.5}, std::array{2.1, 4.3})}) {
    EXPECT_EQ(difference.half_width, 0.0);
    EXPECT_FALSE(difference.p);
  }
  const auto same = paired_difference(std::array{0.3, 0.7}, std::array{0.3, 0.7});
  EXPECT_EQ(same.mean, 0.0);
  EXPECT_EQ(same.half_width, 0.0);
  EXPECT_FALSE(same.p);
}

TEST(PairedDifference, leaves_out_what_cannot_be_computed) {
  const auto one = paired_difference(std::array{4.0}, std::array{3.0});
  EXPECT_EQ(one.mean, 1.0);
  EXPECT_FALSE(one.half_width || one.p);
  EXPECT_EQ(one.n, 1);
  const auto broken = paired_difference(std::array{4.0, 5.0}, std::array{3.0, kNaN});
  EXPECT_FALSE(broken.mean || broken.half_width || broken.p);
  EXPECT_FALSE(paired_difference({}, {}).mean);
  EXPECT_THROW(paired_difference(std::array{4.0}, {}), std::invalid_argument);
}

TEST(PairedDifference, of_two_pairs_has_a_p_in_closed_form) {
  // The differences are 1 and 3: t = 2 / 1, and the tail of the Cauchy distribution is 1/2 - atan(2) / pi.
  const auto difference = paired_difference(std::array{3.0, 6.0}, std::array{2.0, 3.0});
  EXPECT_CLOSE(difference.p, 1 - 2 * std::atan(2.0) / std::acos(-1.0));
}

TEST(Holm, adjusts_by_definition) {
  for (const auto& one : golden().at("holm")) {
    const auto adjusted = holm(one.at("p").get<std::vector<double>>());
    const auto expected = one.at("adjusted").get<std::vector<double>>();
    ASSERT_EQ(adjusted.size(), expected.size());
    for (size_t i = 0; i < adjusted.size(); ++i) EXPECT_DOUBLE_EQ(adjusted[i], expected[i]);
  }
}

TEST(Holm, keeps_the_order_given_and_is_1_at_most) {
  EXPECT_THAT(holm({0.5, 0.01, 0.02}), ElementsAre(0.5, 0.03, 0.04));
  EXPECT_THAT(holm({0.6, 0.6}), ElementsAre(1, 1));
  EXPECT_THAT(holm({}), IsEmpty());
}

// Fieller's interval holds the ratios r at which the t test of numerator - r denominator keeps 5 %.
TEST(PairedRatio, ends_where_the_t_test_rejects) {
  const std::vector<double> numerator = {1.1, 0.7, 1.6, 0.9, 1.2}, denominator = {2.2, 1.9, 2.6, 2.4, 1.8};
  const RatioInterval interval = paired_ratio(numerator, denominator);
  EXPECT_NEAR(*interval.ratio, 5.5 / 10.9, 1e-12);
  EXPECT_EQ(interval.n, 5);
  for (const double end : {*interval.low, *interval.high}) {
    std::vector<double> scaled;
    for (const double value : denominator) scaled.push_back(end * value);
    EXPECT_NEAR(*paired_difference(numerator, scaled).p, 0.05, 1e-9);
  }
  EXPECT_LT(*interval.low, *interval.ratio);
  EXPECT_GT(*interval.high, *interval.ratio);
}

TEST(PairedRatio, has_no_interval_if_the_denominator_may_be_0) {
  const RatioInterval interval = paired_ratio(std::vector{1.0, 2.0, 3.0}, std::vector{1.0, -1.5, 0.9});
  EXPECT_TRUE(interval.ratio);
  EXPECT_FALSE(interval.low);
  EXPECT_FALSE(interval.high);
  EXPECT_FALSE(paired_ratio(std::vector{1.0}, std::vector{2.0}).low);
}

TEST(PairedDifference, has_the_standard_deviation_of_the_differences) {
  // 1, 2, 3, 6: mean 3, squares 4 + 1 + 0 + 9.
  EXPECT_NEAR(*paired_difference(std::vector{2.0, 4.0, 6.0, 12.0}, std::vector{1.0, 2.0, 3.0, 6.0})
                   .standard_deviation,
              std::sqrt(14.0 / 3), 1e-12);
}

}  // namespace
}  // namespace dtopp::study
