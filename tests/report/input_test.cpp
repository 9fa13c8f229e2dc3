#include "dtopp/report/input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/report/sections.h"
#include "dtopp/study/definition.h"
#include "tests/report/report_files.h"

namespace dtopp::report {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

class ReportInputFiles : public ReportFiles {};

TEST_F(ReportInputFiles, rows_of_one_name_in_two_studies_stay_apart) {
  std::vector<std::filesystem::path> studies;
  for (const int64_t seed : {1, 2}) {
    const std::string name = "study" + std::to_string(seed);
    const std::filesystem::path run = directory_ / name / "runs/a";
    write_run(run, config_of_seed(seed), 2);
    studies.push_back(
        write_study(name, {{{"path", run.string()}, {"status", "done"}}}, 10 * static_cast<double>(seed)));
  }
  const std::string first = "a (" + studies[0].string() + ")", second = "a (" + studies[1].string() + ")";
  const ReportInput input = read_report_input(studies, nullptr);
  ASSERT_THAT(input.study, SizeIs(2));
  EXPECT_EQ(input.study[0].name, first);
  EXPECT_EQ(input.study[1].name, second);

  Columns columns;
  RunDrawing drawing(input, columns);
  const auto blocks = curve_blocks(drawing);
  const auto& lines =
      std::get<ReportChart>(std::get<ReportChoice>(blocks.at(0).content).options.at(0).blocks.at(0).content)
          .lines;
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_THAT((std::vector{lines[0].run, lines[1].run}), ElementsAre(0, 1));
  EXPECT_EQ(lines[0].name, first + ", mean of 1 seed");
  EXPECT_EQ(columns.at(lines[0].y).first, 10);
  EXPECT_EQ(columns.at(lines[1].y).first, 20);
}

TEST_F(ReportInputFiles, pending_runs_of_a_changed_study_are_left_out) {
  config::RunConfig changed = config_of_seed(2);
  changed.training.steps += 1;
  std::vector<Json> runs;
  for (const auto& [name, config] : {std::pair{"same", config_of_seed(2)}, std::pair{"changed", changed}}) {
    const std::filesystem::path run = directory_ / "study/runs" / name;
    write_run(run, config_of_seed(2), 2);
    runs.push_back({{"path", run.string()}, {"status", "pending"}, {"config_hash", study::hash_of(config)}});
  }
  const ReportInput input = read_report_input({write_study("study", runs)}, nullptr);
  ASSERT_THAT(input.runs, SizeIs(1));
  EXPECT_EQ(input.runs[0].path.filename(), "same");
  EXPECT_EQ(input.study_runs.at("pending"), 2);
}

}  // namespace

}  // namespace dtopp::report
