#include "dtopp/report/sections.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/report/numbers.h"
#include "dtopp/report/page.h"

namespace dtopp::report {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr double kGap = std::numeric_limits<double>::quiet_NaN();

runs::Series series_of(std::vector<double> values) {
  runs::Series series;
  for (size_t i = 0; i < values.size(); ++i) series.steps.push_back(static_cast<int64_t>(i) + 1);
  series.values = std::move(values);
  return series;
}

TEST(SettledAt, is_the_first_step_from_which_every_mean_stays_within_the_tolerance) {
  std::vector<double> values(100, 4.0);
  std::fill_n(values.begin(), 10, 2.1);
  // For s <= 10 the mean over 20 values from step s on is 4 − 1.9 (11 − s) / 20. From s = 9 on it is within
  // 0.2.
  EXPECT_EQ(settled_at(series_of(values), 4), 9);
  values[60] = 10;  // means that contain it are 0.3 off, the last of them starts with it
  EXPECT_EQ(settled_at(series_of(values), 4), 62);
  values.back() = 100;
  EXPECT_EQ(settled_at(series_of(values), 4), std::nullopt);
}

TEST(SettledAt, leaves_gaps_out_and_needs_as_many_lines_as_it_averages) {
  std::vector<double> values(25, 4.0);
  for (const size_t gap : {3, 7, 11}) values[gap] = kGap;
  EXPECT_EQ(settled_at(series_of(values), 4), 1);
  for (const size_t gap : {1, 2, 12}) values[gap] = kGap;
  EXPECT_EQ(settled_at(series_of(values), 4), std::nullopt);
}

TEST(Numbers, are_short_and_exact) {
  EXPECT_EQ(whole(-1234567), "−1,234,567");
  EXPECT_EQ(whole(123), "123");
  EXPECT_EQ(scaled(1075200), "1.075 M");
  EXPECT_EQ(scaled(6228.4), "6,228");
  EXPECT_EQ(scaled(2.5e-5), "2.5e-05");
  EXPECT_EQ(fixed(-0.00001, 3), "0.000");
  EXPECT_EQ(fixed(kGap, 3), "–");
  EXPECT_EQ(interval(1.5, std::nullopt, 2), "1.50");
  EXPECT_EQ(count_of(1, "run") + ", " + count_of(2, "run"), "1 run, 2 runs");
}

// The first section's answer for runs with these losses.
std::string answer(const std::vector<std::vector<double>>& losses) {
  ReportInput input;
  for (const std::vector<double>& values : losses) {
    ReportRun& run = input.runs.emplace_back();
    run.name = "run " + std::to_string(input.runs.size());
    if (!values.empty()) run.history.series["val/loss"] = series_of(values);
  }
  Columns columns;
  RunDrawing drawing(input, columns);
  return learned_section(drawing)->answers[0];
}

TEST(LearnedSection, says_the_steps_of_the_losses_that_it_names) {
  EXPECT_THAT(answer({{4, 3.5, 3}}),
              StartsWith("Validation loss fell from 4.000 at step 1 to 3.000 at step 3. "));
  EXPECT_THAT(answer({{3, 3}}), StartsWith("Validation loss went from 3.000 at step 1 to 3.000 at step 2. "));
  EXPECT_THAT(answer({{kGap, 3, 4, kGap}}), StartsWith("Validation loss rose from 3.000 at step 2 to 4.000 "
                                                       "at step 3, then diverged. "));
  EXPECT_THAT(answer({{kGap, 3}}), StartsWith("Validation loss was 3.000 at step 2. "));
  EXPECT_THAT(answer({{kGap, kGap}}), StartsWith("Validation loss was never finite. "));
}

TEST(LearnedSection, prefers_no_run_whose_last_loss_is_not_finite) {
  EXPECT_THAT(answer({{4, 3}, {2, kGap}}),
              StartsWith("The lowest last validation loss is 3.0000, of run 1. "));
  EXPECT_THAT(answer({{2, kGap}, {}}), StartsWith("Every run with a validation loss diverged. "));
  EXPECT_THAT(answer({{}, {}}), StartsWith("No run has a validation loss yet. "));
}

TEST(UnusualSteps, are_skipped_steps_and_losses_far_above_their_predecessors) {
  ReportInput input;
  EXPECT_FALSE(unusual_steps(input));
  ReportRun& run = input.runs.emplace_back();
  run.path = "runs/a";
  std::vector<double> losses, skips(60, 0);
  for (int i = 0; i < 60; ++i) losses.push_back(5 - 0.01 * i + (i % 2) * 0.02);
  run.history.series["train/lm_loss"] = series_of(losses);
  run.history.series["train/skipped_steps"] = series_of(skips);
  EXPECT_FALSE(unusual_steps(input));
  losses[45] = 7;
  std::fill(skips.begin() + 50, skips.end(), 1);
  run.history.series["train/lm_loss"] = series_of(losses);
  run.history.series["train/skipped_steps"] = series_of(skips);
  const auto table = unusual_steps(input);
  ASSERT_TRUE(table);
  ASSERT_EQ(table->rows.size(), 2U);
  EXPECT_EQ(std::get<std::string>(table->rows[0][3]), "dtopp replay runs/a --step 51");
  EXPECT_EQ(std::get<std::string>(table->rows[1][3]), "dtopp replay runs/a --step 46");
  EXPECT_THAT(std::get<std::string>(table->rows[1][2]), StartsWith("loss 7.000 after 4."));
}

TEST(Page, is_closed_to_the_network_and_to_markup_in_names) {
  ReportDocument document;
  document.title = "</script><script>alert(1)</script>";
  document.sections = {{"learned", "Did it learn", {document.title}, {}}};
  const std::string page = render_page(document, Columns());
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, Not(HasSubstr("connect-src")));
  EXPECT_THAT(page, Not(HasSubstr("unsafe-eval")));
  EXPECT_THAT(render_page(document, Columns(), 1), HasSubstr("connect-src 'self'"));
}

}  // namespace

}  // namespace dtopp::report
