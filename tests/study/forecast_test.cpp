#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/study/runner.h"
#include "tests/study/study_files.h"

namespace dtopp::study {
namespace {

using ::testing::HasSubstr;

// A run that stopped after 20 of its 40 steps.
class StoppedRun : public StudyFiles {
 protected:
  StoppedRun() : runs_(runs_of("40")), records_(1) {
    write_metrics(runs_[0], 3);
    write_file_atomically(runs_[0].directory / "config.yaml", config::to_yaml(runs_[0].config));
    write_record(runs_[0], {});
  }
  std::vector<StudyRun> runs_of(const std::string& steps) {
    return expand(load(kHead, {"output=" + (directory_ / "out").string(), "training.steps=" + steps}));
  }
  std::string forecast(const std::vector<StudyRun>& runs) const {
    return forecast_table(runs, records_, {{.flops = 8e9, .matrix_rate = 1e9}}, {});
  }
  std::string progress(const std::vector<StudyRun>& runs) const {
    const std::vector<double> costs = {8e9};
    return StudyProgress(runs, records_, costs).line({}, 1);
  }

  std::vector<StudyRun> runs_;
  std::vector<RunRecord> records_;
};

TEST_F(StoppedRun, has_made_half_of_its_steps) {
  EXPECT_EQ(last_step(runs_[0]), 20);
  EXPECT_THAT(forecast(runs_), HasSubstr("4.00G"));
  EXPECT_THAT(progress(runs_), HasSubstr("50 %"));
}

TEST_F(StoppedRun, of_another_configuration_counts_for_nothing) {
  const std::vector<StudyRun> changed = runs_of("41");
  ASSERT_EQ(changed[0].directory, runs_[0].directory);
  EXPECT_EQ(last_step(changed[0]), 0);
  EXPECT_THAT(forecast(changed), HasSubstr("8.00G"));
  EXPECT_THAT(progress(changed), HasSubstr("  0 %"));
}

TEST_F(StoppedRun, that_is_done_gives_the_share_of_the_matrix_rate) {
  const std::vector<RunCost> costs = {{.flops = 8e9, .matrix_rate = 5e9}};
  EXPECT_EQ(reached_share(runs_, records_, costs).runs, 0);
  records_[0].status = RunStatus::kDone;
  EXPECT_EQ(reached_share(runs_, records_, costs).runs, 0);  // without rates
  std::string text;
  for (const auto& [step, tflops] :
       std::vector<std::pair<int64_t, double>>{{1, 0.001}, {2, 0.002}, {3, 0.004}})
    text += runs::to_json({step, 128 * step, 5, {{"throughput/tflops", tflops}}}) + "\n";
  write_file_atomically(runs_[0].directory / "metrics.jsonl", text);
  const ReachedShare reached = reached_share(runs_, records_, costs);
  EXPECT_EQ(reached.runs, 1);
  EXPECT_DOUBLE_EQ(reached.share, 0.4);  // 2 of 5 GFLOP/s
}

}  // namespace
}  // namespace dtopp::study
