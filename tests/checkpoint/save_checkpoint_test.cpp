#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/manifest.h"
#include "dtopp/checkpoint/checkpoint.h"
#include "tests/base/scratch_directory.h"
#include "tests/checkpoint/checkpoint_files.h"
#include "tests/config/model_sizes.h"

namespace dtopp::checkpoint::checkpoint_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(SaveCheckpoint, keeps_the_newest_ones) {
  ScratchDirectory scratch;
  for (int64_t step = 10; step <= 50; step += 10) save(scratch.path(), step, 2);
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("step-00000040", "step-00000050"));
  for (int64_t step = 60; step <= 80; step += 10) save(scratch.path(), step, 0);
  EXPECT_EQ(names_in(scratch.path()).size(), 5u);
  save(scratch.path(), 90, 1);
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("step-00000090"));
}

TEST(SaveCheckpoint, orders_steps_by_number_beyond_eight_digits) {
  ScratchDirectory scratch;
  save(scratch.path(), 99'999'999, 1);
  save(scratch.path(), 100'000'000, 1);
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("step-100000000"));
}

// `keep` counts the checkpoints from which a run can resume, so a truncated one does not push out a good one.
TEST(SaveCheckpoint, does_not_count_incomplete_ones_as_kept) {
  ScratchDirectory scratch;
  for (const int64_t step : {10, 20, 30}) save(scratch.path(), step);
  fs::resize_file(scratch / "step-00000030/model.safetensors", 10);
  save(scratch.path(), 40, 2);
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("step-00000020", "step-00000030", "step-00000040"));
}

// A run that resumes from before a damaged checkpoint must keep the checkpoints that it saves on the way.
TEST(SaveCheckpoint, never_removes_what_it_has_just_written) {
  ScratchDirectory scratch;
  save(scratch.path(), 100);
  fs::resize_file(save(scratch.path(), 200) / "state.json", 3);
  save(scratch.path(), 150, 1);
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("step-00000150", "step-00000200"));
  save(scratch.path(), 200, 1);
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("step-00000200"));
  EXPECT_TRUE(holds(Checkpoint(scratch / "step-00000200"), SampleContents(200).contents));
}

// A checkpoint may contain notes, and a directory may have a checkpoint's name without being one.
TEST(SaveCheckpoint, removes_nothing_that_it_did_not_write) {
  ScratchDirectory scratch;
  overwrite(save(scratch.path(), 10) / "notes.txt", "the good one");
  save(scratch.path(), 20);
  fs::create_directory(scratch / "step-00000005");
  overwrite(scratch / "step-00000005/thesis.tex", "years of work");
  save(scratch.path(), 30, 1);
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("step-00000005", "step-00000010", "step-00000030"));
  EXPECT_EQ(read_file(scratch / "step-00000005/thesis.tex"), "years of work");
}

TEST(SaveCheckpoint, leaves_the_same_step_with_the_same_state_as_it_is) {
  ScratchDirectory scratch;
  const auto path = save(scratch.path(), 10);
  const auto before = fs::last_write_time(path / "model.safetensors");
  EXPECT_EQ(save(scratch.path(), 10), path);
  EXPECT_EQ(fs::last_write_time(path / "model.safetensors"), before);
}

TEST(SaveCheckpoint, replaces_the_same_step_with_another_state) {
  ScratchDirectory scratch;
  const auto path = save(scratch.path(), 10);
  SampleContents validated(10);
  validated.contents.state.last_validation_step = 10;
  EXPECT_EQ(save_checkpoint(scratch.path(), validated.contents, 1), path);
  EXPECT_TRUE(holds(Checkpoint(path), validated.contents));
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("step-00000010"));
}

TEST(SaveCheckpoint, removes_leftovers_of_interrupted_writes) {
  ScratchDirectory scratch;
  fs::create_directories(scratch / ".tmp-step-00000009.0123456789abcdef/nested");
  overwrite(scratch / ".tmp-step-00000009.0123456789abcdef/model.safetensors", "half");
  fs::create_directories(scratch / ".tmp-step-00000010.fedcba9876543210");
  save(scratch.path(), 10);
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("step-00000010"));
}

TEST(SaveCheckpoint, that_fails_names_the_path_and_leaves_what_was_there) {
  ScratchDirectory scratch;
  save(scratch.path(), 10);
  SampleContents bad(20);
  bad.contents.router.push_back(bad.contents.router[0]);
  EXPECT_THAT(error_of<DataError>([&] { save_checkpoint(scratch.path(), bad.contents, 1); }),
              HasSubstr("router.safetensors"));
  overwrite(scratch / "file", "");
  EXPECT_THAT(error_of<DataError>([&] { save(scratch / "file/checkpoints", 20); }),
              HasSubstr("/file: cannot create the directory: Not a directory"));
  fs::remove(scratch / "file");
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("step-00000010"));
}

TEST(SaveCheckpoint, replaces_a_checkpoint_of_the_step_with_another_router) {
  ScratchDirectory scratch;
  const SampleContents first(10), other(11);
  SampleContents second(10);
  save_checkpoint(scratch.path(), first.contents, 0);
  second.contents.router = other.contents.router;
  const fs::path path = save_checkpoint(scratch.path(), second.contents, 0);
  EXPECT_TRUE(holds(Checkpoint(path), second.contents));
}

}  // namespace
}  // namespace dtopp::checkpoint::checkpoint_test
