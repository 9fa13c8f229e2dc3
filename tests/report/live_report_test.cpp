#include "dtopp/report/live_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/study/definition.h"
#include "tests/report/report_files.h"

namespace dtopp::report {
namespace {

using testing::HasSubstr;
using testing::Not;

class LiveReportFiles : public ReportFiles {};

TEST_F(LiveReportFiles, a_studys_run_is_shown_from_its_first_metrics_on) {
  std::vector<Json> runs;
  for (const int64_t seed : {1, 2}) {
    const config::RunConfig config = config_of_seed(seed);
    runs.push_back({{"path", (directory_ / "study/runs/seed").string() + std::to_string(seed)},
                    {"status", "pending"},
                    {"config_hash", study::hash_of(config)}});
  }
  const auto write = [&](size_t run) {
    write_run(runs[run]["path"].get<std::string>(), config_of_seed(static_cast<int64_t>(run) + 1), 2);
  };
  write(0);
  LiveReport report({write_study("study", runs)}, nullptr);
  EXPECT_THAT(report.page(), Not(HasSubstr("seed2")));
  write(1);
  EXPECT_THAT(report.news(1), HasSubstr("seed2"));
}

TEST_F(LiveReportFiles, curves_that_follow_their_study_are_shown) {
  const std::filesystem::path run = directory_ / "study/runs/seed1";
  write_run(run, config_of_seed(1), 2);
  const auto study = write_study("study", {{{"path", run.string()}, {"status", "done"}}});
  const std::string curves = read_file(study / "curves.json");
  std::filesystem::remove(study / "curves.json");
  for (const auto& path : {study, study / "study.json"}) {
    LiveReport report({path}, nullptr);
    EXPECT_THAT(report.page(), Not(HasSubstr("train/loss over seeds")));
    write_file_atomically(study / "curves.json", curves);
    EXPECT_THAT(report.news(1), HasSubstr("train/loss over seeds"));
    std::filesystem::remove(study / "curves.json");
  }
}

TEST_F(LiveReportFiles, new_samples_are_shown) {
  const std::filesystem::path run = directory_ / "run";
  write_run(run, config_of_seed(1), 2);
  LiveReport report({run}, nullptr);
  EXPECT_THAT(report.page(), Not(HasSubstr("\"Samples\"")));
  make_directories(run / "samples");
  std::filesystem::create_symlink("step-00000009.txt", run / "samples/step-00000009.txt");  // a loop
  write_file_atomically(run / "samples/step-00000002.txt", std::string("It was | late\n"));
  EXPECT_THAT(report.news(1), HasSubstr("It was | late"));
}

TEST_F(LiveReportFiles, outlives_a_link_that_leads_nowhere) {
  const std::filesystem::path run = directory_ / "run";
  write_run(run, config_of_seed(1), 2);
  LiveReport report({run}, nullptr);
  std::filesystem::create_symlink("loop.json", run / "loop.json");
  write_run(run, config_of_seed(1), 3);
  EXPECT_THAT(report.news(1), HasSubstr("\"trouble\":null"));
}

}  // namespace

}  // namespace dtopp::report
