#include "dtopp/study/runner.h"

#include <csignal>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "dtopp/base/files.h"
#include "tests/study/study_files.h"

namespace dtopp::study {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A script replaces `dtopp train CONFIG`; $name, $steps and $run come from the configuration.
class RunningStudy : public StudyFiles {
 protected:
  void make(const std::string& yaml, const std::string& script,
            const std::vector<std::string>& arguments = {}) {
    std::vector<std::string> all = arguments;
    all.push_back("output=" + (directory_ / "out").string());
    const Study study = load(yaml, all);
    runs_ = expand(study);
    after_ = study.after;
    costs_.assign(runs_.size(), 1);
    write_file_atomically(directory_ / "program",
                          "#!/bin/sh\n"
                          "name=$(sed -n 's/^name: //p' $2); run=$(sed -n 's/^output: //p' $2 | tr -d '\"')\n"
                          "cp $2 $run/config.yaml; cd " +
                              directory_.path().string() + "; echo $name >> started\n" + script + "\n");
    std::filesystem::permissions(directory_ / "program", std::filesystem::perms::owner_all);
  }
  bool run(int64_t slots = 1, int64_t threads = 0) {
    records_.clear();
    for (const StudyRun& one : runs_) records_.push_back(read_record(one));
    const RunnerOptions options{.slots = slots,
                                .program = directory_ / "program",
                                .threads = threads,
                                .costs = costs_,
                                .after = after_,
                                .grace = grace_,
                                .hours = hours_};
    StudyRunner runner(runs_, records_, options);
    while (const auto messages = runner.next()) std::ranges::copy(*messages, std::back_inserter(said_));
    out_of_time_ = runner.out_of_time();
    return runner.stopped();
  }
  // The names of the runs that started since the last call.
  std::vector<std::string> started() {
    std::ifstream file(directory_ / "started");
    std::vector<std::string> names;
    for (std::string name; std::getline(file, name);) names.push_back(name);
    std::filesystem::remove(directory_ / "started");
    return names;
  }
  auto all_are(RunStatus status) const { return Each(Field(&RunRecord::status, status)); }

  std::vector<StudyRun> runs_;
  std::vector<double> costs_;
  std::vector<AfterCommand> after_;
  std::vector<RunRecord> records_;
  std::vector<std::string> said_;
  std::chrono::milliseconds grace_{60000};
  double hours_ = 0;
  bool out_of_time_ = false;
};

TEST_F(RunningStudy, starts_what_is_not_done_once) {
  make(kHead + "seeds: [1, 2]\n", "exit 0");
  EXPECT_FALSE(run());
  EXPECT_THAT(records_, all_are(RunStatus::kDone));
  EXPECT_THAT(started(), ElementsAre("base-seed1", "base-seed2"));
  make(kHead + "seeds: [1, 3, 2]\n", "exit 0", {"training.threads=2"});
  EXPECT_FALSE(run());
  EXPECT_THAT(records_, all_are(RunStatus::kDone));
  EXPECT_THAT(started(), ElementsAre("base-seed3"));
}

TEST_F(RunningStudy, starts_no_run_that_would_end_too_late) {
  make(kHead + "seeds: [1, 2, 3]\n", "sleep 0.3");
  hours_ = 0.5 / 3600;  // the first run takes 0.3 s, so the second one would end at 0.6 s
  EXPECT_FALSE(run());
  EXPECT_TRUE(out_of_time_);
  EXPECT_THAT(started(), ElementsAre("base-seed1"));
  hours_ = 1;
  EXPECT_FALSE(run());
  EXPECT_FALSE(out_of_time_);
  EXPECT_THAT(started(), ElementsAre("base-seed2", "base-seed3"));
}

TEST_F(RunningStudy, leaves_out_variants_that_are_not_selected) {
  make(kHead + "variants: {a: {}, b: {}}\n", "exit 0", {"variants=[b]"});
  EXPECT_FALSE(run());
  EXPECT_FALSE(out_of_time_);
  EXPECT_THAT(started(), ElementsAre("b-seed7"));
}

TEST_F(RunningStudy, keeps_a_failure_to_its_run_and_tries_it_again) {
  const std::string study = kHead + "seeds: [1, 2, 3]\n";
  make(study, "case $name in *2) echo 'dtopp: error: out of luck' >&2; exit 3;; *3) kill -9 $$;; esac");
  EXPECT_FALSE(run());
  EXPECT_EQ(records_[0].status, RunStatus::kDone);
  EXPECT_EQ(records_[1].status, RunStatus::kFailed);
  EXPECT_EQ(records_[1].cause, "ended with status 3: out of luck");
  EXPECT_EQ(records_[2].cause, "killed by signal 9 (Killed)");
  EXPECT_THAT(said_, ElementsAre("base-seed2 failed: ended with status 3: out of luck",
                                 HasSubstr("base-seed3 failed")));
  started();
  make(study, "test $name != base-seed2");
  EXPECT_FALSE(run());
  EXPECT_THAT(started(), ElementsAre("base-seed2", "base-seed3"));
  // The output of an earlier start does not become the cause of this failure.
  EXPECT_EQ(records_[1].cause, "ended with status 1");
  EXPECT_EQ(records_[2].status, RunStatus::kDone);
}

TEST_F(RunningStudy, outlives_a_console_file_that_became_shorter_or_vanished) {
  make(kHead + "seeds: [1, 2, 3]\n",
       "case $name in *1) : > $run/console.log; echo 'dtopp: error: out of luck' >&2; exit 3;; "
       "*2) rm $run/console.log; exit 3;; esac");
  for (const StudyRun& one : runs_) {
    std::filesystem::create_directories(one.directory);
    std::ofstream(console_of_run(one)) << std::string(1000, 'x') << "\n";  // of an earlier start
  }
  EXPECT_FALSE(run());
  EXPECT_EQ(records_[0].cause, "ended with status 3: out of luck");
  EXPECT_EQ(records_[1].cause, "ended with status 3");
  EXPECT_EQ(records_[2].status, RunStatus::kDone);
}

TEST_F(RunningStudy, runs_as_many_at_once_as_there_are_slots) {
  // Each run waits for the other one.
  make(kHead + "seeds: [1, 2]\n",
       "touch $name.there; for i in $(seq 1000); do test -e base-seed1.there -a -e base-seed2.there && exit "
       "0; "
       "sleep 0.01; done; exit 1");
  run(2);
  EXPECT_THAT(records_, all_are(RunStatus::kDone));
}

TEST_F(RunningStudy, shares_out_threads_where_the_configuration_names_none) {
  make(kHead + "variants: {all: {}, one: {training.threads: 1}}\n", "shift 2; echo \"$@\" > $name.arguments");
  run(1, 3);
  EXPECT_EQ(read_file(directory_ / "all-seed7.arguments"), "training.threads=3\n");
  EXPECT_EQ(read_file(directory_ / "one-seed7.arguments"), "\n");
}

TEST_F(RunningStudy, stops_its_runs_with_it_and_goes_on_the_next_time) {
  const std::string study = kHead + "seeds: [1, 2, 3]\n";
  make(study,
       "test $name = base-seed1 && exit 0; trap 'exit 75' TERM; kill -TERM $PPID; while :; do sleep 0.01; "
       "done");
  EXPECT_TRUE(run());
  EXPECT_THAT(started(), ElementsAre("base-seed1", "base-seed2"));
  EXPECT_EQ(records_[0].status, RunStatus::kDone);
  EXPECT_EQ(records_[1].status, RunStatus::kPending);
  EXPECT_EQ(records_[2].status, RunStatus::kPending);
  make(study, "exit 0");
  EXPECT_FALSE(run());
  EXPECT_THAT(started(), ElementsAre("base-seed2", "base-seed3"));
}

// Run 2 makes the study fail while run 1 trains: the record of run 2 cannot be written.
std::string failing_beside(const std::string& run_1) {
  return "if test $name = base-seed1; then " + run_1 +
         "; touch ready; while :; do sleep 0.01; done; fi\n"
         "while ! test -e ready; do sleep 0.01; done; rm -r $run; touch $run";
}

TEST_F(RunningStudy, lets_runs_save_when_it_ends_with_an_error) {
  make(kHead + "seeds: [1, 2]\n", failing_beside("trap 'sleep 0.3; touch saved; exit 75' TERM"));
  EXPECT_THROW(run(2), DataError);
  EXPECT_EQ(path_kind(directory_ / "saved"), PathKind::kFile);
  EXPECT_EQ(read_record(runs_[0]).status, RunStatus::kPending);
}

TEST_F(RunningStudy, kills_runs_that_do_not_end_within_the_grace_time) {
  make(kHead + "seeds: [1, 2]\n", failing_beside("trap '' TERM; echo $$ > process"));
  grace_ = std::chrono::milliseconds(100);
  EXPECT_THROW(run(2), DataError);
  EXPECT_EQ(::kill(std::stoi(read_file(directory_ / "process")), 0), -1);
}

TEST_F(RunningStudy, kills_them_on_a_second_signal) {
  make(kHead, "trap '' TERM; kill -TERM $PPID; sleep 0.2; kill -TERM $PPID; while :; do sleep 0.01; done");
  EXPECT_TRUE(run());
  EXPECT_EQ(records_[0].status, RunStatus::kPending);
}

TEST_F(RunningStudy, moves_a_run_of_another_configuration_aside_and_takes_it_back) {
  make(kHead, "echo $name > $run/proof");
  run();
  const std::string first = runs_[0].hash.substr(0, kShortHash);
  make(kHead, "exit 0", {"training.steps=13"});
  EXPECT_EQ(read_record(runs_[0]).status, RunStatus::kPending);
  run();
  EXPECT_THAT(said_,
              ElementsAre(HasSubstr("holds a run with another configuration (differs in training.steps)")));
  EXPECT_EQ(path_kind(runs_[0].directory / "proof"), PathKind::kNothing);
  EXPECT_EQ(path_kind(directory_ / "out/earlier" / ("base-seed7-" + first) / "proof"), PathKind::kFile);
  started();
  make(kHead, "exit 0");
  run();
  EXPECT_EQ(path_kind(runs_[0].directory / "proof"), PathKind::kFile);
  EXPECT_THAT(started(), IsEmpty());
  EXPECT_THAT(said_, SizeIs(3));  // one run moved, one moved back
}

TEST_F(RunningStudy, moves_a_run_with_damaged_files_to_a_folder_of_the_study) {
  make(kHead, "exit 0");
  run();
  write_file_atomically(runs_[0].directory / "config.yaml", "no: [yaml");
  write_file_atomically(runs_[0].directory / "study-run.json",
                        R"({"config_hash": "/../../x", "status": "done", "seconds": 1})");
  run();
  EXPECT_EQ(path_kind(directory_ / "out/earlier/base-seed7-unknown"), PathKind::kDirectory);
}

TEST_F(RunningStudy, runs_commands_once_after_each_run) {
  const std::string first =
      kHead + "seeds: [1, 2]\nafter:\n  first: dtopp measure {run}/config.yaml {result}\n";
  const std::string script = "test $1 = train || echo $1 > $3";
  make(first + "  second: cp {run}/after/first.json {run}/copy\n", script);
  EXPECT_FALSE(run());
  EXPECT_THAT(started(), ElementsAre("base-seed1", "base-seed1", "base-seed2", "base-seed2"));
  EXPECT_EQ(read_file(runs_[1].directory / "copy"), "measure\n");
  EXPECT_THAT(records_[0].after, ElementsAre("first: dtopp measure {run}/config.yaml {result}",
                                             "second: cp {run}/after/first.json {run}/copy"));
  EXPECT_FALSE(run());
  EXPECT_THAT(started(), IsEmpty());
  // A changed command runs again; those before it do not.
  make(first + "  second: cp {run}/after/first.json {run}/other\n", script);
  EXPECT_FALSE(run());
  EXPECT_THAT(started(), IsEmpty());
  EXPECT_EQ(path_kind(runs_[0].directory / "other"), PathKind::kFile);
}

TEST_F(RunningStudy, keeps_a_failed_command_to_its_run_and_tries_it_again) {
  const std::string study =
      kHead + "seeds: [1, 2]\nafter:\n  check: dtopp check {run}/config.yaml\n  last: /no/program\n";
  make(study, "case $1-$name in check-*1) echo 'dtopp: error: too bad' >&2; exit 3;; esac");
  EXPECT_FALSE(run());
  EXPECT_THAT(records_, all_are(RunStatus::kDone));
  EXPECT_EQ(records_[0].cause, "command check ended with status 3: too bad");
  EXPECT_THAT(records_[0].after, IsEmpty());
  EXPECT_EQ(records_[1].cause, "command last ended with status 127");
  EXPECT_THAT(said_, SizeIs(2));
  started();
  make(kHead + "seeds: [1, 2]\nafter:\n  check: dtopp check {run}/config.yaml\n", "exit 0");
  EXPECT_FALSE(run());
  EXPECT_THAT(started(), ElementsAre("base-seed1"));
  EXPECT_EQ(read_record(runs_[0]).cause, "");
  EXPECT_TRUE(is_complete(read_record(runs_[0]), after_));
}

}  // namespace
}  // namespace dtopp::study
