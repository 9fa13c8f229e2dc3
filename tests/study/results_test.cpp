#include "dtopp/study/results.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtopp/base/json.h"
#include "dtopp/base/random.h"
#include "tests/study/study_files.h"

namespace dtopp::study {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ValueOfRun, is_the_last_validation_and_the_mean_of_the_last_tenth_of_training) {
  runs::RunHistory history;
  for (int64_t step = 1; step <= 25; ++step) {
    for (const char* name : {"train/loss", "val/loss", "eval/arc/accuracy", "train/active_flops"}) {
      history.series[name].steps.push_back(step);
      history.series[name].values.push_back(static_cast<double>(step));
    }
  }
  EXPECT_EQ(value_of_run(history, "train/loss").value, 24.5);
  EXPECT_EQ(value_of_run(history, "val/loss").value, 25);
  EXPECT_EQ(value_of_run(history, "eval/arc/accuracy").value, 25);
  EXPECT_EQ(value_of_run(history, "train/active_flops").value, 25);  // of all steps so far
  EXPECT_EQ(value_of_run(history, "moe/imbalance").value, std::nullopt);
  EXPECT_FALSE(value_of_run(history, "moe/imbalance").diverged);
  history.series["one"] = {{1}, {3.5}};
  EXPECT_EQ(value_of_run(history, "one").value, 3.5);
}

TEST(ValueOfRun, leaves_out_skipped_steps_and_has_no_value_if_the_run_diverged) {
  runs::RunHistory history;
  history.series["train/loss"] = {{1, 2, 3}, {4, 3, std::nan("")}};
  for (int64_t step = 1; step <= 20; ++step) {
    history.series["train/grad_norm"].steps.push_back(step);
    history.series["train/grad_norm"].values.push_back(step == 19 ? std::nan("") : 2.0);
  }
  EXPECT_TRUE(value_of_run(history, "train/loss").diverged);
  EXPECT_EQ(value_of_run(history, "train/loss").value, std::nullopt);
  EXPECT_EQ(value_of_run(history, "train/grad_norm").value, 2);
  EXPECT_FALSE(value_of_run(history, "train/grad_norm").diverged);
}

class StudyTable : public StudyFiles {
 protected:
  static inline const std::string kStudy =
      kHead +
      "seeds: [1, 2, 3]\nvariants: {base: {}, more: {routing.experts: 4}}\n"
      "grid: {model.num_experts: [8, 16]}\n";

  void make(const std::string& yaml, const std::vector<std::string>& arguments = {}) {
    study_ = load(yaml, arguments);
    runs_ = expand(study_);
    records_.assign(runs_.size(), {.status = RunStatus::kDone});
    values_.assign(runs_.size(), {RunValue{1.0}});
  }
  // Sets the value of every run by variant, point and seed.
  void set(const std::function<double(size_t, size_t, int64_t)>& value) {
    for (size_t i = 0; i < runs_.size(); ++i)
      values_[i] = {RunValue{value(runs_[i].variant, runs_[i].point, runs_[i].seed)}};
  }
  size_t find(size_t variant, size_t point, int64_t seed) const {
    for (size_t i = 0; i < runs_.size(); ++i) {
      if (runs_[i].variant == variant && runs_[i].point == point && runs_[i].seed == seed) return i;
    }
    throw std::out_of_range("no such run");
  }
  StudyResults results() const { return {values_, make_rows(study_, runs_, records_, values_)}; }
  nlohmann::json json() const {
    return parse_json(study_json(study_, runs_, records_, results()), "study.json");
  }

  Study study_;
  std::vector<StudyRun> runs_;
  std::vector<RunRecord> records_;
  std::vector<std::vector<RunValue>> values_;
};

// The baseline has the values 1, 2, 3 for the seeds 1, 2, 3. The variant is 0.5, 1 and 1.5 lower at the first
// point, and 1, 1 and 4 lower at the second.
//
// Student's t with 2 degrees of freedom has closed forms: the quantile at P is (2 P - 1) sqrt(2 / (4 P (1 -
// P))), and |t| is exceeded with probability 1 - t / sqrt(2 + t^2).
TEST_F(StudyTable, holds_means_and_differences_by_seed) {
  make(kStudy);
  set([](size_t variant, size_t point, int64_t seed) {
    const double less = point == 0 ? 0.5 * static_cast<double>(seed) : (seed == 3 ? 4 : 1);
    return static_cast<double>(seed) - (variant == 1 ? less : 0);
  });
  const auto rows = results().rows;
  ASSERT_EQ(rows.size(), 4U);
  const double t = 0.95 * std::sqrt(2 / (4 * 0.975 * 0.025));
  EXPECT_EQ(rows[0].measures[0].values.mean, 2);
  EXPECT_NEAR(*rows[0].measures[0].values.half_width, t / std::sqrt(3), 1e-12);
  EXPECT_FALSE(rows[0].measures[0].difference);
  EXPECT_EQ(rows[1].measures[0].values.mean, 1);
  const auto p_of = [](double value) { return 1 - value / std::sqrt(2 + value * value); };
  const PairedDifference& first = *rows[1].measures[0].difference;
  EXPECT_EQ(first.mean, -1);
  EXPECT_NEAR(*first.half_width, t * 0.5 / std::sqrt(3), 1e-12);
  const double p_first = p_of(1 / (0.5 / std::sqrt(3)));
  EXPECT_NEAR(*first.p, p_first, 1e-12);
  const PairedDifference& second = *rows[3].measures[0].difference;
  EXPECT_EQ(second.mean, -2);
  const double p_second = p_of(2 / (std::sqrt(3.0) / std::sqrt(3)));
  EXPECT_NEAR(*second.p, p_second, 1e-12);
  ASSERT_LT(p_first, p_second);
  EXPECT_NEAR(*rows[1].measures[0].p_holm, 2 * p_first, 1e-12);
  EXPECT_NEAR(*rows[3].measures[0].p_holm, std::max(2 * p_first, p_second), 1e-12);
}

TEST_F(StudyTable, pairs_only_seeds_that_both_have) {
  make(kStudy);
  set([](size_t variant, size_t, int64_t seed) {
    return static_cast<double>(seed * seed) + (variant == 1 ? 2 : 0);
  });
  records_[find(0, 0, 2)].status = RunStatus::kFailed;
  records_[find(1, 0, 3)].status = RunStatus::kPending;
  const auto rows = results().rows;
  EXPECT_EQ(rows[0].n, 2);
  EXPECT_EQ(rows[0].measures[0].values.mean, 5);
  EXPECT_EQ(rows[1].n, 2);
  EXPECT_EQ(rows[1].measures[0].difference->n, 1);
  EXPECT_EQ(rows[1].measures[0].difference->mean, 2);
  EXPECT_FALSE(rows[1].measures[0].difference->half_width);
  EXPECT_THAT(rows[1].notes, ElementsAre("train/loss: a single pair has no interval"));
}

TEST_F(StudyTable, leaves_blank_what_it_cannot_compute_and_says_why) {
  make(kStudy);
  set([](size_t, size_t, int64_t seed) { return static_cast<double>(seed); });
  values_[find(1, 1, 1)] = {RunValue{}};
  for (const int64_t seed : {1, 2, 3}) values_[find(0, 1, seed)] = {RunValue{}};
  const auto document = json();
  const auto& table = document.at("table");
  EXPECT_EQ(dump_json(table[0].at("difference")), "null");
  // The same values as the baseline, so the differences have no spread.
  EXPECT_EQ(dump_json(table[1].at("difference").at("train/loss")),
            R"({"half_width":0.0,"mean":0.0,"n":3,"p":null,"p_holm":null})");
  EXPECT_THAT(table[3].at("notes").dump(), HasSubstr("train/loss is missing in seed 1"));
  EXPECT_EQ(table[3].at("values").at("train/loss").at("n"), 2);
  EXPECT_EQ(dump_json(table[2].at("notes")), R"(["train/loss is missing in all seeds"])");
}

TEST_F(StudyTable, leaves_diverged_runs_out_of_means_and_counts_them) {
  make(kStudy);
  set([](size_t, size_t, int64_t seed) { return static_cast<double>(seed); });
  const RunValue diverged{.diverged = true};
  values_[find(0, 0, 2)] = {diverged};
  for (const int64_t seed : {1, 2, 3}) values_[find(1, 1, seed)] = {diverged};
  const auto rows = results().rows;
  EXPECT_EQ(rows[0].measures[0].values.mean, 2);
  EXPECT_EQ(rows[0].measures[0].diverged, 1);
  EXPECT_EQ(rows[1].measures[0].difference->n, 2);
  EXPECT_FALSE(rows[3].measures[0].values.mean);
  EXPECT_THAT(rows[0].notes, ElementsAre("train/loss diverged in seed 2"));
  const auto document = json();
  EXPECT_EQ(dump_json(document.at("runs")[find(0, 0, 2)].at("diverged")), R"(["train/loss"])");
  EXPECT_EQ(document.at("table")[3].at("values").at("train/loss").at("diverged"), 3);
  const std::string table = markdown_table(study_, rows);
  EXPECT_THAT(table, HasSubstr("| base | 8 | 3 | 2 ± 13 (1 diverged) |"));
  EXPECT_THAT(table, HasSubstr("| more | 16 | 3 | diverged |  |  |"));
}

TEST_F(StudyTable, takes_values_from_the_results_of_commands) {
  make(
      "base: base.yaml\nseeds: [1, 2]\nmeasure: [train/loss, images/rows/0/kid]\nafter:\n  images: dtopp "
      "evaluate {run}\n",
      {"output=" + (directory_ / "out").string()});
  for (const StudyRun& run : runs_) write_metrics(run, 2);
  make_directories(runs_[0].directory / "after");
  write_file_atomically(result_of(runs_[0], study_.after[0]), R"({"rows": [{"kid": 0.25}]})");
  ResultsReader reader(study_, runs_);
  EXPECT_FALSE(reader.read(records_).values[0][1].value);  // the command has not run
  for (RunRecord& record : records_) record.after = {"images: dtopp evaluate {run}"};
  const auto values = reader.read(records_).values;
  EXPECT_EQ(values[0][1].value, 0.25);
  EXPECT_FALSE(values[1][1].value);
  EXPECT_FALSE(values[1][1].diverged);
  write_file_atomically(result_of(runs_[0], study_.after[0]), R"({"rows": [{"kid": null}]})");
  EXPECT_TRUE(ResultsReader(study_, runs_).read(records_).values[0][1].diverged);
}

TEST_F(StudyTable, json_has_a_run_with_what_became_of_it) {
  make(kStudy);
  records_[1] = {.status = RunStatus::kFailed, .cause = "killed"};
  values_[1] = {RunValue{}};
  const auto run = json().at("runs")[1];
  EXPECT_EQ(run.at("variant"), "more");
  EXPECT_EQ(run.at("grid").dump(), R"({"model.num_experts":8})");
  EXPECT_EQ(run.at("seed"), 1);
  EXPECT_EQ(run.at("path"), "out/runs/more-num_experts-8-seed1");
  EXPECT_EQ(run.at("status"), "failed");
  EXPECT_EQ(run.at("cause"), "killed");
  EXPECT_TRUE(run.at("values").at("train/loss").is_null());
}

TEST_F(StudyTable, as_text_escapes_names_and_rounds_to_the_interval) {
  make(kHead + "seeds: [1, 2]\nvariants: {\"a|b_c, 5%\": {}, b: {}}\n");
  set([](size_t variant, size_t, int64_t seed) {
    return (variant == 0 ? 3 : 2.5) + 0.001 * static_cast<double>(seed);
  });
  const auto rows = results().rows;
  const std::string markdown = markdown_table(study_, rows);
  EXPECT_THAT(
      markdown,
      HasSubstr(
          "| variant | n | train/loss | minus a\\|b\\_c, 5% | p (Holm) |\n|---|---:|---:|---:|---:|\n"));
  EXPECT_THAT(markdown, HasSubstr("| a\\|b\\_c, 5% | 2 | 3.0015 ± 0.0064 |  |  |"));
  EXPECT_THAT(markdown, HasSubstr("| b | 2 | 2.5015 ± 0.0064 | -0.5 ± 0 |  |"));
  EXPECT_THAT(csv_table(study_, rows), HasSubstr("\n\"a|b_c, 5%\",2,3.0015,0.0063"));
  EXPECT_THAT(latex_table(study_, rows), HasSubstr("a|b\\_c, 5\\% & 2 & 3.0015 $\\pm$ 0.0064 &  &  \\\\\n"));
}

TEST(WithHalfWidth, shows_two_digits_of_it) {
  EXPECT_EQ(with_half_width(3.14159, 0.0213), "3.142 ± 0.021");
  EXPECT_EQ(with_half_width(1234.5, 67.8), "1234 ± 68");
  EXPECT_EQ(with_half_width(-0.5, 0.25, true), "-0.50 ± 0.25");
  EXPECT_EQ(with_half_width(0.5, 1.23, true), "+0.5 ± 1.2");
  EXPECT_EQ(with_half_width(3.14159265, std::nullopt), "3.14159");
  EXPECT_EQ(with_half_width(std::nullopt, std::nullopt), "");
}

// 2,000 studies whose seeds have normal values and whose variant has a mean 0.3 above the baseline.
TEST_F(StudyTable, intervals_of_simulated_studies_cover_what_is_true) {
  make(kHead + "seeds: [1, 2, 3, 4]\nvariants: {a: {}, b: {}}\n");
  constexpr int kStudies = 2000;
  int means = 0, differences = 0;
  std::vector<float> row(12);
  const RandomStream stream(20261123, "simulated studies");
  for (int study = 0; study < kStudies; ++study) {
    stream.normals(static_cast<uint64_t>(study), row);
    set([&](size_t variant, size_t, int64_t seed) {
      const auto at = static_cast<size_t>(seed - 1);
      return 5 + row[at] +
             (variant == 1 ? 0.3 + 0.1 * row[4 + at] : 0.0);  // both variants share the effect of a seed
    });
    const auto rows = results().rows;
    means += std::abs(*rows[0].measures[0].values.mean - 5) <= *rows[0].measures[0].values.half_width;
    const PairedDifference& difference = *rows[1].measures[0].difference;
    differences += std::abs(*difference.mean - 0.3) <= *difference.half_width;
  }
  const double deviation = std::sqrt(0.95 * 0.05 / kStudies);
  EXPECT_NEAR(means / double{kStudies}, 0.95, 4 * deviation);
  EXPECT_NEAR(differences / double{kStudies}, 0.95, 4 * deviation);
}

}  // namespace
}  // namespace dtopp::study
