#include "dtopp/study/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/json.h"
#include "dtopp/study/results.h"
#include "tests/study/study_files.h"

namespace dtopp::study {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::map<std::string, std::string> describe(const config::RunConfig& /*config*/) {
  return {{"cpu", "a CPU"}};
}

class StudyLedger : public StudyFiles {
 protected:
  static inline const std::string kStudy =
      "base: base.yaml\nmeasure: [train/loss, val/loss]\noutput: out\nseeds: [1, 2]\n";

  StudyLedger() {
    write_file_atomically(directory_ / "train.npy", "training data");
    data_ = {"data.train=[" + (directory_ / "train.npy").string() + "]",
             "data.validation=[" + (directory_ / "train.npy").string() + "]",
             "output=" + (directory_ / "out").string(), "ledger=" + ledger().string()};
  }
  std::filesystem::path ledger() const { return directory_ / "there/ledger.json"; }

  // Opens the study as the program does: from folders, then from the ledger.
  StudyResults open(const std::string& yaml, const std::vector<std::string>& arguments = {}) {
    std::vector<std::string> all = data_;
    all.insert(all.end(), arguments.begin(), arguments.end());
    study_ = load(yaml, all);
    runs_ = expand(study_);
    records_.clear();
    for (const StudyRun& run : runs_) records_.push_back(read_record(run));
    ResultsReader reader(study_, runs_);
    LedgerKeeper keeper(study_, runs_);
    messages_ = keeper.take_runs(records_, reader);
    taken_ = keeper.curves();
    StudyResults results = reader.read(records_);
    keeper.add_runs(records_, results, describe);
    return results;
  }
  // Writes the folder of a run that is done.
  void finish(size_t index, double loss) {
    const StudyRun& run = runs_.at(index);
    make_directories(run.directory);
    std::string text;
    for (int64_t step = 1; step <= 300; ++step)
      text += runs::to_json({step,
                             10 * step,
                             5,
                             {{"train/loss", loss + 300.0 - static_cast<double>(step)},
                              {"train/active_flops", 20.0 * static_cast<double>(step)}}}) +
              "\n";
    text += runs::to_json({300, 3000, 6, {{"val/loss", loss}}}) + "\n";
    write_file_atomically(metrics_of_run(run), text);
    write_record(run, {.status = RunStatus::kDone, .seconds = 3});
  }
  std::string text() const { return read_file(ledger()); }
  nlohmann::json json() const { return parse_json(text(), "ledger"); }

  std::vector<std::string> data_;
  Study study_;
  std::vector<StudyRun> runs_;
  std::vector<RunRecord> records_;
  std::vector<std::string> messages_;
  std::map<size_t, RunCurves> taken_;
};

TEST_F(StudyLedger, alone_gives_the_results_of_the_folders) {
  open(kStudy);
  EXPECT_EQ(path_kind(ledger()), PathKind::kNothing);
  finish(0, 2.5);
  finish(1, 1.0 / 3);
  const StudyResults of_folders = open(kStudy);
  const std::string before = study_json(study_, runs_, records_, of_folders);
  const std::string written = text();
  EXPECT_THAT(taken_, IsEmpty());
  remove_tree(directory_ / "out");
  const StudyResults of_ledger = open(kStudy);
  EXPECT_EQ(study_json(study_, runs_, records_, of_ledger), before);
  EXPECT_EQ(of_ledger.values[1][1].value, 1.0 / 3);
  EXPECT_THAT(messages_, IsEmpty());
  EXPECT_EQ(text(), written);
  // 64 points stand for 300 steps, without their mean changing much: 300 / 64 steps per point.
  const RunCurve& curve = taken_.at(0).at("train/loss");
  EXPECT_THAT(curve.value, SizeIs(kLedgerPoints));
  EXPECT_NEAR(curve.value.front(), 2.5 + 300 - 2.5, 0.6);
  EXPECT_NEAR(curve.x[0].back(), 10 * 298, 6);
  EXPECT_NEAR(curve.x[1].back(), 2 * 10 * 298, 12);
}

TEST_F(StudyLedger, row_names_what_the_run_was) {
  open(kStudy);
  finish(0, 2.5);
  open(kStudy);
  const auto row = json().at("runs").at(0);
  EXPECT_EQ(row.at("run"), "base-seed1");
  EXPECT_EQ(row.at("seed"), 1);
  EXPECT_EQ(row.at("steps"), 300);
  EXPECT_EQ(row.at("tokens"), 3000);
  EXPECT_EQ(row.at("active_flops"), 6000);
  EXPECT_EQ(row.at("seconds"), 3);
  EXPECT_EQ(row.at("config_hash"), runs_[0].hash);
  EXPECT_EQ(row.at("made_by").at("cpu"), "a CPU");
  EXPECT_EQ(row.at("values").at("val/loss"), 2.5);
}

TEST_F(StudyLedger, run_of_another_configuration_or_other_data_does_not_count) {
  open(kStudy);
  finish(0, 2.5);
  open(kStudy);
  remove_tree(directory_ / "out");
  open(kStudy, {"optimizer.lr=0.5"});
  EXPECT_EQ(records_[0].status, RunStatus::kPending);
  write_file_atomically(directory_ / "train.npy", "other data");
  open(kStudy);
  EXPECT_EQ(records_[0].status, RunStatus::kPending);
  // The row stays, and counts again with its data.
  finish(0, 3.5);
  open(kStudy);
  EXPECT_EQ(json().at("runs").at(0).at("values").at("val/loss"), 3.5);
  EXPECT_EQ(json().at("earlier").at(0).at("values").at("val/loss"), 2.5);
  remove_tree(directory_ / "out");
  write_file_atomically(directory_ / "train.npy", "training data");
  EXPECT_EQ(open(kStudy).values[0][1].value, 2.5);
}

TEST_F(StudyLedger, counts_without_its_data_with_a_warning) {
  open(kStudy);
  finish(0, 2.5);
  open(kStudy);
  remove_tree(directory_ / "out");
  remove_tree(directory_ / "train.npy");
  EXPECT_EQ(open(kStudy).values[0][1].value, 2.5);
  ASSERT_THAT(messages_, SizeIs(1));
  EXPECT_THAT(messages_[0], HasSubstr("1 runs count although their data are not on this machine"));
}

TEST_F(StudyLedger, that_differs_from_a_folder_ends_with_both_names) {
  open(kStudy);
  finish(0, 2.5);
  open(kStudy);
  finish(0, 2.75);
  try {
    open(kStudy);
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("train/loss is 17, but 17.25 in"));
    EXPECT_THAT(error.what(), HasSubstr(ledger().string()));
    EXPECT_THAT(error.what(), HasSubstr((directory_ / "out/runs/base-seed1").string()));
  }
}

TEST_F(StudyLedger, folder_fills_in_a_measure_that_the_ledger_lacks) {
  const std::string fewer = "base: base.yaml\nmeasure: [val/loss]\noutput: out\nseeds: [1]\n";
  open(fewer);
  finish(0, 2.5);
  open(fewer);
  EXPECT_FALSE(json().at("runs").at(0).at("values").contains("train/loss"));
  open(kStudy);
  EXPECT_EQ(json().at("runs").size(), 1);
  EXPECT_EQ(json().at("runs").at(0).at("values").at("train/loss"),
            2.5 + 14.5);  // the mean of the last 30 steps
}

TEST_F(StudyLedger, refuses_a_file_that_is_none) {
  make_directories(ledger().parent_path());
  for (const std::string content : {"[]", R"({"runs": [{}], "earlier": []})", R"({"runs": []})"}) {
    write_file_atomically(ledger(), content);
    EXPECT_THROW(open(kStudy), DataError) << content;
  }
}

}  // namespace
}  // namespace dtopp::study
