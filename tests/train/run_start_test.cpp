#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/runs/run_directory.h"
#include "dtopp/train/start.h"
#include "tests/base/damage.h"
#include "tests/base/log_text.h"
#include "tests/base/scratch_directory.h"
#include "tests/checkpoint/checkpoint_files.h"
#include "tests/distributed/rank_threads.h"

namespace dtopp::train {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The step from which each rank resumes, and rank 0's messages.
struct Resumed {
  std::vector<int64_t> steps = std::vector<int64_t>(3, -1);  // -1: no checkpoint
  std::vector<std::string> warnings{};
};

Resumed resume(const fs::path& run) {
  Resumed resumed;
  distributed::run_group(3, [&](distributed::Collectives& ranks) {
    const auto rank = static_cast<size_t>(ranks.rank());
    const LogText warnings;
    const auto checkpoint = checkpoint_to_resume(run, ranks, warnings.log());
    if (rank == 0) resumed.warnings = warnings.lines();
    EXPECT_TRUE(rank == 0 || warnings.lines().empty());
    if (checkpoint) resumed.steps[rank] = checkpoint->state().step;
  });
  return resumed;
}

TEST(CheckpointToResume, is_the_newest_on_all_ranks) {
  const ScratchDirectory run;
  EXPECT_THAT(resume(run.path()).steps, ElementsAre(-1, -1, -1));
  checkpoint::checkpoint_test::save(runs::checkpoints_of(run.path()), 10);
  checkpoint::checkpoint_test::save(runs::checkpoints_of(run.path()), 20);
  const Resumed resumed = resume(run.path());
  EXPECT_THAT(resumed.steps, ElementsAre(20, 20, 20));
  EXPECT_THAT(resumed.warnings, IsEmpty());
}

TEST(CheckpointToResume, passes_over_damage_in_any_ranks_part) {
  const ScratchDirectory run;
  checkpoint::checkpoint_test::save(runs::checkpoints_of(run.path()), 10);
  const auto newest = checkpoint::checkpoint_test::save(runs::checkpoints_of(run.path()), 20);
  for (const std::string& name : checkpoint::checkpoint_test::names_in(newest)) {
    SCOPED_TRACE(name);
    const std::string bytes = read_file(newest / name);
    checkpoint::checkpoint_test::overwrite(newest / name, with_flipped_bit(bytes, bytes.size() / 2 * 8));
    const Resumed resumed = resume(run.path());
    EXPECT_THAT(resumed.steps, ElementsAre(10, 10, 10));
    EXPECT_THAT(resumed.warnings, ElementsAre(HasSubstr((newest / name).string() + ": ")));
    checkpoint::checkpoint_test::overwrite(newest / name, bytes);
  }
  EXPECT_THAT(resume(run.path()).steps, ElementsAre(20, 20, 20));
}

TEST(CheckpointToResume, is_refused_where_a_rank_cannot_read_the_newest) {
  const ScratchDirectory run;
  checkpoint::checkpoint_test::save(runs::checkpoints_of(run.path()), 10);
  const auto newest = checkpoint::checkpoint_test::save(runs::checkpoints_of(run.path()), 20);
  fs::remove(newest / "optimizer.safetensors");
  fs::create_symlink(std::string(300, 'x'), newest / "optimizer.safetensors");
  EXPECT_THAT(error_of<CheckpointError>([&] { resume(run.path()); }),
              HasSubstr((newest / "optimizer.safetensors").string() + ": "));
}

TEST(CheckpointToResume, is_refused_where_the_checkpoints_are_lost) {
  const ScratchDirectory run;
  checkpoint::checkpoint_test::overwrite(run / "metrics.jsonl", "{\"step\":1}\n");
  EXPECT_THAT(error_of<CheckpointError>([&] { resume(run.path()); }), HasSubstr("holds no checkpoint"));
}

TEST(CheckpointToResume, is_refused_where_none_verifies) {
  const ScratchDirectory run;
  const auto only = checkpoint::checkpoint_test::save(runs::checkpoints_of(run.path()), 10);
  fs::resize_file(only / "optimizer.safetensors", 7);
  EXPECT_THAT(error_of<CheckpointError>([&] { resume(run.path()); }),
              HasSubstr("none of its checkpoints verifies"));
}

}  // namespace
}  // namespace dtopp::train
