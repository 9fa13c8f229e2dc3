#include "dtopp/runs/run_directory.h"

#include <cerrno>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "tests/base/log_text.h"
#include "tests/base/scratch_directory.h"
#include "tests/checkpoint/checkpoint_files.h"
#include "tests/config/model_sizes.h"

namespace dtopp::runs {

using checkpoint::checkpoint_test::names_in;
using checkpoint::checkpoint_test::overwrite;
using checkpoint::checkpoint_test::save;

namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(NewestCheckpoint, is_none_where_there_is_none) {
  ScratchDirectory scratch;
  EXPECT_FALSE(newest_checkpoint(scratch / "absent", ConsoleLog()));
  for (const auto* const name : {"step-1", "step-0000000x", "step-000000001", ".tmp-step-00000001", "other"})
    fs::create_directory(scratch / name);
  overwrite(scratch / "step-00000005", "a file");
  EXPECT_FALSE(newest_checkpoint(scratch.path(), ConsoleLog()));
}

TEST(NewestCheckpoint, passes_over_damaged_ones_and_says_so) {
  ScratchDirectory scratch;
  for (const int64_t step : {10, 20, 30}) save(scratch.path(), step);
  fs::remove(scratch / "step-00000030/manifest.json");
  fs::resize_file(scratch / "step-00000020/model.safetensors", 100);
  const LogText warnings;
  const auto newest = newest_checkpoint(scratch.path(), warnings.log());
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->state().step, 10);
  EXPECT_THAT(warnings.lines(), ElementsAre(HasSubstr("step-00000030/manifest.json"),
                                            HasSubstr("step-00000020/model.safetensors: damaged")));
}

TEST(NewestCheckpoint, is_not_replaced_by_an_older_one_when_a_read_fails) {
  ScratchDirectory scratch;
  for (const int64_t step : {10, 20}) save(scratch.path(), step);
  const auto with = [&](int error_number) {
    return newest_checkpoint(scratch.path(), ConsoleLog(), checkpoint::CheckpointUse::kTraining,
                             [&](const fs::path& directory, const ManifestFiles&) {
                               if (directory.filename() == "step-00000020")
                                 throw file_error("read", directory / "model.safetensors", error_number);
                             });
  };
  for (const int passing : {EACCES, EIO, EMFILE, ENOMEM})
    EXPECT_THAT(error_of<checkpoint::UnreadableCheckpoint>([&] { with(passing); }),
                HasSubstr("step-00000020/model.safetensors: cannot read: "));
  EXPECT_EQ(with(ENOENT)->state().step, 10);
  // Without an injected error: a link whose status cannot be read.
  fs::remove(scratch / "step-00000020/model.safetensors");
  fs::create_symlink(std::string(300, 'x'), scratch / "step-00000020/model.safetensors");
  EXPECT_THAT(
      error_of<checkpoint::UnreadableCheckpoint>([&] { newest_checkpoint(scratch.path(), ConsoleLog()); }),
      HasSubstr("step-00000020/model.safetensors: cannot read its size: File name too long"));
}

TEST(NewestCheckpoint, is_an_error_when_all_are_damaged) {
  ScratchDirectory scratch;
  for (const int64_t step : {10, 20}) fs::resize_file(save(scratch.path(), step) / "state.json", 5);
  const LogText warnings;
  EXPECT_THAT(error_of<CheckpointError>([&] { newest_checkpoint(scratch.path(), warnings.log()); }),
              HasSubstr("none of its checkpoints verifies; the newest: "));
  EXPECT_EQ(warnings.lines().size(), 2u);
}

TEST(OpenCheckpoint, takes_a_checkpoint_a_run_or_its_checkpoints) {
  ScratchDirectory scratch;
  save(scratch / "run/checkpoints", 10);
  save(scratch / "run/checkpoints", 20);
  EXPECT_EQ(open_checkpoint(scratch / "run/checkpoints/step-00000010", ConsoleLog()).state().step, 10);
  EXPECT_EQ(open_checkpoint(scratch / "run", ConsoleLog()).state().step, 20);
  EXPECT_EQ(open_checkpoint(scratch / "run/checkpoints", ConsoleLog()).state().step, 20);
}

TEST(OpenCheckpoint, what_is_not_one_is_the_users_mistake) {
  ScratchDirectory scratch;
  fs::create_directory(scratch / "empty");
  overwrite(scratch / "file", "text");
  for (const auto* const name : {"absent", "empty", "file"})
    EXPECT_THAT(error_of<UsageError>([&] { open_checkpoint(scratch / name, ConsoleLog()); }),
                HasSubstr(name));
}

TEST(OpenCheckpoint, takes_the_newest_without_a_look_at_the_optimizers_file) {
  ScratchDirectory scratch;
  save(scratch / "run/checkpoints", 10);
  fs::resize_file(save(scratch / "run/checkpoints", 20) / "optimizer.safetensors", 7);
  EXPECT_EQ(open_checkpoint(scratch / "run", ConsoleLog()).state().step, 20);
  const auto resumed = newest_checkpoint(scratch / "run/checkpoints", ConsoleLog());
  EXPECT_EQ(resumed->state().step, 10);
}

// A folder that cannot be read gives the system's reason, not "no checkpoint there".
TEST(OpenCheckpoint, says_why_it_cannot_look) {
  ScratchDirectory scratch;
  fs::create_symlink("loop", scratch / "loop");
  EXPECT_THAT(error_of<DataError>([&] { open_checkpoint(scratch / "loop", ConsoleLog()); }),
              HasSubstr("Too many levels of symbolic links"));
}

TEST(RunDirectory, knows_its_configuration_once_it_has_begun) {
  ScratchDirectory scratch;
  EXPECT_FALSE(config_of(scratch.path()));
  config::RunConfig config = config::sized_config();
  config.name = "begun";
  overwrite(config_file_of(scratch.path()), config::to_yaml(config));
  EXPECT_EQ(config_of(scratch.path())->name, "begun");
  overwrite(config_file_of(scratch.path()), "nam: begun\n");
  EXPECT_THAT(error_of<UsageError>([&] { config_of(scratch.path()); }),
              HasSubstr("config.yaml:1: unknown key"));
}

TEST(RunDirectory, removes_what_it_created_unless_it_is_kept) {
  ScratchDirectory scratch;
  config::RunConfig config = config::sized_config();
  config.output = (scratch / "a/b/run").string();
  {
    RunDirectory directory(config, /*is_main_rank=*/true);
    EXPECT_FALSE(fs::exists(config.output));
    directory.create();
    EXPECT_TRUE(fs::exists(config.output));
  }
  EXPECT_FALSE(fs::exists(scratch / "a"));
  {
    RunDirectory directory(config, /*is_main_rank=*/true);
    directory.create();
    directory.keep();
  }
  EXPECT_TRUE(config_of(config.output));
}

TEST(RunDirectory, requires_the_space_of_a_checkpoint_and_warns_of_more) {
  ScratchDirectory scratch;
  config::RunConfig config = config::sized_config();
  config.output = scratch / "a/run";
  config.training.steps = 10;
  config.checkpoint = {.every = 2, .keep = 2};
  const RunDirectory directory(config, /*is_main_rank=*/true);
  const uint64_t free = fs::space(scratch.path()).available;
  const LogText quiet, warns;
  directory.require_space(free / 8, quiet.log());  // three at once
  EXPECT_THAT(quiet.lines(), ElementsAre());
  directory.require_space(free / 2, warns.log());
  EXPECT_THAT(warns.lines(), ElementsAre(HasSubstr("the run writes 3 more checkpoints of ")));
  EXPECT_THAT(error_of<DataError>([&] { directory.require_space(2 * free, quiet.log()); }),
              HasSubstr((scratch / "a/run").string() + ": its file system has "));
  EXPECT_FALSE(fs::exists(scratch / "a"));
}

TEST(RunDirectory, knows_when_its_checkpoints_are_lost) {
  ScratchDirectory scratch;
  config::RunConfig config = config::sized_config();
  config.output = (scratch / "run").string();
  const auto lost = [&] {
    return error_of<CheckpointError>([&] { require_no_lost_checkpoints(config.output); });
  };
  {
    RunDirectory directory(config, /*is_main_rank=*/true);
    directory.create();
    EXPECT_NO_THROW(require_no_lost_checkpoints(config.output));
    directory.keep();
    overwrite(scratch / "run/metrics.jsonl", "{\"step\":1}\n");
    EXPECT_NO_THROW(require_no_lost_checkpoints(config.output));  // ended before its first checkpoint
    directory.record_saved(400);
  }
  EXPECT_EQ(lost(), (scratch / "run/checkpoints").string() +
                        ": holds no checkpoint, but run.json records one of step 400; restore or mount that "
                        "folder, or choose another output to start again");
  fs::remove(scratch / "run/run.json");
  EXPECT_THAT(lost(), HasSubstr("metrics.jsonl holds the metrics of a run"));
  overwrite(scratch / "run/metrics.jsonl", "");
  EXPECT_NO_THROW(require_no_lost_checkpoints(config.output));
  overwrite(scratch / "run/run.json", "{}");
  EXPECT_THAT(error_of<DataError>([&] { require_no_lost_checkpoints(config.output); }),
              HasSubstr("run.json"));
}

TEST(RunDirectory, counts_the_restarts_of_its_run) {
  ScratchDirectory scratch;
  config::RunConfig config = config::sized_config();
  config.output = (scratch / "run").string();
  for (const char* const restarts : {"\"restarts\": 0", "\"restarts\": 1", "\"restarts\": 2"}) {
    RunDirectory directory(config, /*is_main_rank=*/true);
    directory.create();
    directory.keep();
    directory.record_saved(4);
    EXPECT_THAT(read_file(scratch / "run/run.json"), HasSubstr(restarts));
  }
}

TEST(RunDirectory, finishes_the_last_save_of_a_run_once) {
  ScratchDirectory scratch;
  config::RunConfig config = config::sized_config();
  config.output = (scratch / "run").string();
  config.checkpoint.keep = 1;
  const fs::path checkpoints = scratch / "run/checkpoints";
  RunDirectory directory(config, /*is_main_rank=*/true);
  directory.create();
  directory.keep();
  directory.record_saved(10);
  for (const int64_t step : {10, 20}) save(checkpoints, step);
  fs::create_directory(checkpoints / ".tmp-step-00000005.0123456789abcdef");
  directory.finish_save(20);
  EXPECT_THAT(names_in(checkpoints), ElementsAre("step-00000020"));
  EXPECT_THAT(read_file(scratch / "run/run.json"), HasSubstr("\"saved_step\": 20"));
  save(checkpoints, 10);
  directory.finish_save(20);  // run.json records it
  EXPECT_THAT(names_in(checkpoints), ElementsAre("step-00000010", "step-00000020"));
}

TEST(RunDirectory, lets_data_move_once_checkpoints_record_their_content) {
  ScratchDirectory scratch;
  config::RunConfig config = config::sized_config();
  config.output = (scratch / "run").string();
  config.data.train = {{"a", 2.0}, {"b", 1.0}};
  {
    RunDirectory directory(config, /*is_main_rank=*/true);
    directory.create();
    directory.keep();
  }
  const auto open = [&] { RunDirectory(config, /*is_main_rank=*/true); };
  config.data.train[1].path = "c";
  EXPECT_THAT(error_of<UsageError>(open), HasSubstr("data.train"));
  save(scratch / "run/checkpoints", 10);
  EXPECT_NO_THROW(open());
  config.data.train[1].weight = 2;
  EXPECT_THAT(error_of<UsageError>(open), HasSubstr("data.train"));
  config.data.train.pop_back();
  EXPECT_THAT(error_of<UsageError>(open), HasSubstr("data.train"));
}

TEST(RunDirectory, refuses_a_second_holder_and_another_configuration) {
  ScratchDirectory scratch;
  config::RunConfig config = config::sized_config();
  config.output = (scratch / "run").string();
  {
    RunDirectory first(config, /*is_main_rank=*/true);
    first.create();
    first.keep();
    EXPECT_THROW(RunDirectory(config, /*is_main_rank=*/true), UsageError);
    EXPECT_NO_THROW(RunDirectory(config, /*is_main_rank=*/false));
  }
  config.training.seed += 1;
  EXPECT_THAT(error_of<UsageError>([&] { RunDirectory(config, /*is_main_rank=*/true); }),
              HasSubstr("training.seed"));
}

}  // namespace
}  // namespace dtopp::runs
