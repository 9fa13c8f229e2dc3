#include "dtopp/runs/run_history.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/runs/metrics.h"
#include "tests/base/scratch_directory.h"

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

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RunHistoryFile : public ::testing::Test {
 protected:
  RunHistory read(const std::string& text) {
    write_file_atomically(directory_ / "metrics.jsonl", text);
    return read_run_history(directory_ / "metrics.jsonl");
  }
  std::string failure_of(const std::string& text) {
    try {
      read(text);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  }

  ScratchDirectory directory_;
};

std::string training(int64_t step, double loss, double rate) {
  return to_json({step, step * 128, 100.5 + static_cast<double>(step), {{"train/loss", loss}, {"r", rate}}}) +
         "\n";
}

TEST_F(RunHistoryFile, gives_each_metric_where_it_has_a_value) {
  const std::string validation = to_json({2, 256, 103, {{"val/loss", 4.5}}}) + "\n";
  const RunHistory history =
      read(training(1, 5.25, 7) + training(2, 5, 8) + validation + training(3, 0.1, 9));
  EXPECT_EQ(history.series.size(), 3U);
  EXPECT_THAT(history.series.at("train/loss").steps, ElementsAre(1, 2, 3));
  EXPECT_THAT(history.series.at("train/loss").values, ElementsAre(5.25, 5, 0.1));
  EXPECT_THAT(history.series.at("r").values, ElementsAre(7, 8, 9));
  EXPECT_THAT(history.series.at("val/loss").steps, ElementsAre(2));
  EXPECT_THAT(history.series.at("val/loss").values, ElementsAre(4.5));
}

TEST_F(RunHistoryFile, takes_tokens_and_time_of_training_lines_alone) {
  const std::string validation = to_json({0, 0, 99, {{"val/loss", 4.5}}}) + "\n";
  const RunHistory history = read(validation + training(1, 5, 7) + training(2, 5, 8));
  EXPECT_THAT(history.tokens.steps, ElementsAre(1, 2));
  EXPECT_THAT(history.tokens.values, ElementsAre(128, 256));
  EXPECT_THAT(history.time.values, ElementsAre(101.5, 102.5));
}

TEST_F(RunHistoryFile, null_is_not_a_number) {
  const RunHistory history = read(training(1, std::numeric_limits<double>::infinity(), 7));
  EXPECT_TRUE(std::isnan(history.series.at("train/loss").values.at(0)));
  EXPECT_THAT(history.tokens.steps, ElementsAre(1));
}

TEST_F(RunHistoryFile, leaves_a_torn_last_line_out) {
  const std::string whole = training(1, 5, 7) + training(2, 4, 8);
  for (size_t cut = 1; cut < training(2, 4, 8).size(); ++cut)
    EXPECT_THAT(read(whole.substr(0, whole.size() - cut)).series.at("train/loss").steps, ElementsAre(1));
  EXPECT_THAT(read("").series, IsEmpty());
}

TEST_F(RunHistoryFile, names_the_line_that_is_wrong) {
  const std::string good = training(1, 5, 7);
  EXPECT_THAT(failure_of(good + "{\"step\":2,\n"), HasSubstr("metrics.jsonl: line 2: invalid JSON"));
  EXPECT_THAT(failure_of(good + "[1]\n"), HasSubstr("line 2: must be a JSON object"));
  EXPECT_THAT(failure_of(good + "{\"step\":2,\"tokens\":1}\n"), HasSubstr("line 2: has no number time"));
  EXPECT_THAT(failure_of(good + "{\"step\":2,\"tokens\":1,\"time\":1,\"a\":\"b\"}\n"),
              HasSubstr("line 2: a: expected a number or null"));
  EXPECT_THAT(failure_of(good + good), HasSubstr("line 2: train/loss of step 1 comes after that of step 1"));
  EXPECT_THAT(failure_of("\n" + good), HasSubstr("line 1: invalid JSON"));
}

TEST_F(RunHistoryFile, that_is_not_there_is_a_data_error) {
  EXPECT_THROW(read_run_history(directory_ / "none.jsonl"), DataError);
}

}  // namespace

}  // namespace dtopp::runs
