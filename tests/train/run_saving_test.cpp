// Tests a run saved by one rank and by several: the files are equal, and any number of ranks resumes from
// them.
#include "dtopp/train/run_saving.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/models/registry/make_model.h"
#include "dtopp/runs/run_directory.h"
#include "tests/base/scratch_directory.h"
#include "tests/distributed/rank_threads.h"
#include "tests/train/tiny_model.h"

namespace dtopp::train {
namespace {

namespace fs = std::filesystem;

// The name and bytes of each file of a directory.
std::map<std::string, std::string> files_of(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& path : list_directory(directory)) files[path.filename().string()] = read_file(path);
  return files;
}

// Runs body(trainer) on each rank of the grid.
template <class Body>
void with_trainers(const config::RunConfig& config, const distributed::ParallelDims& dims, const Body& body) {
  distributed::run_ranks(dims.world_size, [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    at::set_num_threads(1);
    const distributed::ProcessGroups groups =
        dims.world_size == 1
            ? distributed::ProcessGroups{}
            : distributed::make_process_groups(store, rank, dims, distributed::on_loopback());
    Trainer trainer(config, models::make_model(config), data_for(config), at::kFloat, groups);
    body(trainer, groups);
  });
}

const std::vector<distributed::ParallelDims> kSavingGrids = {
    distributed::ep_by_edp(1, 1), distributed::ep_by_edp(1, 2), distributed::ep_by_edp(2, 1),
    distributed::ep_by_edp(1, 4), distributed::ep_by_edp(2, 2)};

TEST(SaveRun, gives_the_same_files_on_any_grid_of_ranks_and_each_goes_on_from_them) {
  const ScratchDirectory scratch;
  config::RunConfig config = tiny();
  config.output = (scratch / "run").string();
  std::map<std::string, std::string> expected, later;
  for (const distributed::ParallelDims& dims : kSavingGrids) {
    SCOPED_TRACE(testing::Message() << dims.world_size << " ranks in blocks of " << dims.ep_size);
    with_trainers(config, dims, [&](Trainer& trainer, const distributed::ProcessGroups& groups) {
      trainer.initialise();
      for (int i = 0; i < 3; ++i) step(trainer);
      EXPECT_EQ(save_run(trainer, config, *groups.world),
                runs::checkpoints_of(config.output) / "step-00000003");
      for (int i = 0; i < 2; ++i) step(trainer);
      save_run(trainer, config, *groups.world);
    });
    const auto files = files_of(runs::checkpoints_of(config.output) / "step-00000003");
    EXPECT_THAT(files, testing::Contains(testing::Key("manifest.json")));
    if (expected.empty()) expected = files;
    EXPECT_TRUE(files == expected);
    const auto after = files_of(runs::checkpoints_of(config.output) / "step-00000005");
    if (later.empty()) later = after;
    EXPECT_TRUE(after == later);
    fs::remove_all(runs::checkpoints_of(config.output) / "step-00000005");
    if (dims.world_size > 1) continue;
    fs::copy(runs::checkpoints_of(config.output), scratch / "kept", fs::copy_options::recursive);
  }
  for (const distributed::ParallelDims& dims : kSavingGrids) {
    SCOPED_TRACE(testing::Message() << dims.world_size << " ranks in blocks of " << dims.ep_size);
    with_trainers(config, dims, [&](Trainer& trainer, const distributed::ProcessGroups& groups) {
      trainer.restore(checkpoint::Checkpoint(scratch / "kept/step-00000003"));
      for (int i = 0; i < 2; ++i) step(trainer);
      save_run(trainer, config, *groups.world);
    });
    EXPECT_TRUE(files_of(runs::checkpoints_of(config.output) / "step-00000005") == later);
    fs::remove_all(config.output);
  }
}

TEST(SaveRun, ends_all_ranks_where_one_cannot_write) {
  const ScratchDirectory scratch;
  config::RunConfig config = tiny();
  config.output = (scratch / "run").string();
  std::ofstream(config.output) << "a file";
  with_trainers(config, {1, 2}, [&](Trainer& trainer, const distributed::ProcessGroups& groups) {
    trainer.initialise();
    if (groups.rank() == 0)
      EXPECT_THAT(error_of<DataError>([&] { save_run(trainer, config, *groups.world); }),
                  testing::HasSubstr("cannot create the directory"));
    else
      EXPECT_THAT(error_of<distributed::RankLost>([&] { save_run(trainer, config, *groups.world); }),
                  testing::HasSubstr("rank 0 could not save"));
  });
}

}  // namespace
}  // namespace dtopp::train
