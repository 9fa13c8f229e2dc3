#include "dtopp/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/manifest.h"
#include "tests/base/damage.h"
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

TEST(Checkpoint, gives_back_every_bit_that_was_saved) {
  ScratchDirectory scratch;
  SampleContents sample(1000);
  const auto path = save_checkpoint(scratch / "run/checkpoints", sample.contents, 0);
  EXPECT_EQ(path, scratch / "run/checkpoints/step-00001000");
  EXPECT_THAT(names_in(path),
              ElementsAre("config.yaml", "manifest.json", "model.safetensors", "optimizer.safetensors",
                          "router.safetensors", "state.json", "tokenizer.json"));
  EXPECT_TRUE(holds(Checkpoint(path), sample.contents));
  EXPECT_THAT(names_in(scratch / "run/checkpoints"), ElementsAre("step-00001000"));
}

TEST(Checkpoint, is_split_past_the_shard_size_under_hugging_face_names) {
  ScratchDirectory scratch;
  SampleContents sample(7);
  const auto path = save_checkpoint(scratch / "checkpoints", sample.contents, 0, /*shard_bytes=*/48);
  EXPECT_TRUE(holds(Checkpoint(path), sample.contents));
  EXPECT_THAT(names_in(path),
              ElementsAre("config.yaml", "manifest.json", "model-00001-of-00003.safetensors",
                          "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors",
                          "model.safetensors.index.json", "optimizer-00001-of-00004.safetensors",
                          "optimizer-00002-of-00004.safetensors", "optimizer-00003-of-00004.safetensors",
                          "optimizer-00004-of-00004.safetensors", "optimizer.safetensors.index.json",
                          "router.safetensors", "state.json", "tokenizer.json"));
  const auto moments = nlohmann::json::parse(read_file(path / "optimizer.safetensors.index.json"));
  EXPECT_EQ(moments["metadata"]["total_size"], 4 * 48);
  EXPECT_EQ(moments["weight_map"]["model.norm.weight.exp_avg"], "optimizer-00003-of-00004.safetensors");
  const auto index = nlohmann::json::parse(read_file(path / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 2 * 48 + 4);
  EXPECT_EQ(index["weight_map"]["model.layers.0.mlp.gate.scale"], "model-00003-of-00003.safetensors");
}

TEST(Checkpoint, of_a_run_without_tokenizer_has_no_tokenizer_file) {
  ScratchDirectory scratch;
  SampleContents sample(1);
  sample.contents.tokenizer_json.clear();
  const Checkpoint checkpoint(save_checkpoint(scratch.path(), sample.contents, 0));
  EXPECT_FALSE(fs::exists(checkpoint.tokenizer_path()));
}

TEST(Checkpoint, damaged_and_missing_files_are_detected_and_named) {
  ScratchDirectory scratch;
  SampleContents sample(3);
  const auto path = save_checkpoint(scratch.path(), sample.contents, 0, /*shard_bytes=*/48);
  for (const auto& name : names_in(path)) {
    const auto open = [&] { Checkpoint{path}; };
    expect_damage_is_named<CheckpointError>(path / name, open);
    if (!name.starts_with("optimizer"))
      expect_damage_is_named<CheckpointError>(path / name,
                                              [&] { Checkpoint(path, CheckpointUse::kInference); });
    const auto original = read_file(path / name);
    fs::remove(path / name);
    EXPECT_THAT(error_of<CheckpointError>(open), StartsWith((path / name).string()));
    overwrite(path / name, original);
  }
  EXPECT_TRUE(holds(Checkpoint(path), sample.contents));
}

TEST(Checkpoint, damage_of_the_optimizers_files_is_not_looked_for_without_need) {
  ScratchDirectory scratch;
  const auto path = save_checkpoint(scratch.path(), SampleContents(3).contents, 0);
  overwrite(path / "optimizer.safetensors",
            with_flipped_bit(read_file(path / "optimizer.safetensors"), /*bit=*/80));
  EXPECT_EQ(Checkpoint(path, CheckpointUse::kInference).state().step, 3);
}

TEST(Checkpoint, files_it_does_not_list_are_ignored_but_for_a_tokenizer) {
  ScratchDirectory scratch;
  SampleContents sample(3);
  sample.contents.tokenizer_json.clear();
  const auto path = save_checkpoint(scratch.path(), sample.contents, 0);
  overwrite(path / "notes.txt", "loss looks fine");
  EXPECT_EQ(Checkpoint(path).state(), sample.contents.state);
  overwrite(path / "tokenizer.json", "{}");
  EXPECT_THAT(error_of<CheckpointError>([&] { Checkpoint{path}; }),
              HasSubstr("tokenizer.json: not in the manifest"));
}

// Writes the manifest again without `name`: checkpoints from other programs may list no optimizer file.
void leave_out_of_manifest(const fs::path& path, const std::string& name) {
  Manifest manifest = read_manifest(path, "dtopp checkpoint 1");
  manifest.files.erase(name);
  overwrite(path / "manifest.json", format_manifest(manifest));
}

TEST(Checkpoint, without_the_optimizers_file_serves_inference_and_no_training) {
  for (const bool listed : {true, false}) {
    ScratchDirectory scratch;
    SampleContents sample(3);
    const auto path = save_checkpoint(scratch.path(), sample.contents, 0);
    fs::remove(path / "optimizer.safetensors");
    if (!listed) leave_out_of_manifest(path, "optimizer.safetensors");
    const Checkpoint checkpoint(path, CheckpointUse::kInference);
    EXPECT_EQ(checkpoint.state(), sample.contents.state);
    for (const auto& tensor : sample.contents.parameters)
      EXPECT_EQ(checkpoint.parameter(tensor.name, tensor.shape).size(), tensor.size);
    EXPECT_THROW(checkpoint.slot("model.norm.weight.exp_avg", {2, 6}), std::logic_error);
    EXPECT_THAT(
        error_of<CheckpointError>([&] { Checkpoint{path}; }),
        HasSubstr("optimizer.safetensors: is missing: evaluate and generate can use this checkpoint"));
  }
}

TEST(Checkpoint, without_one_of_the_optimizers_files_serves_inference_and_no_training) {
  ScratchDirectory scratch;
  const auto path = save_checkpoint(scratch.path(), SampleContents(3).contents, 0, /*shard_bytes=*/48);
  fs::remove(path / "optimizer-00002-of-00004.safetensors");
  EXPECT_THAT(error_of<CheckpointError>([&] { Checkpoint{path}; }),
              HasSubstr("optimizer-00002-of-00004.safetensors: is missing: evaluate and generate can use"));
  for (const auto& name : names_in(path))
    if (name.starts_with("optimizer")) fs::remove(path / name);
  EXPECT_EQ(Checkpoint(path, CheckpointUse::kInference).state().step, 3);
}

TEST(Checkpoint, reads_its_configuration_from_the_verified_bytes) {
  ScratchDirectory scratch;
  SampleContents sample(3);
  config::RunConfig config = config::sized_config();
  config.model.num_layers = 7;
  sample.contents.config_yaml = config::to_yaml(config);
  const Checkpoint checkpoint(save_checkpoint(scratch.path(), sample.contents, 0), CheckpointUse::kInference);
  overwrite(checkpoint.path() / "config.yaml", "model: {num_layers: 8}\n");
  EXPECT_EQ(config::to_yaml(checkpoint.config()),
            config::to_yaml(config));  // no training data and no output: they were not asked for
}

TEST(Checkpoint, a_configuration_that_leads_elsewhere_is_refused) {
  ScratchDirectory scratch;
  overwrite(scratch / "other.yaml", "model: {num_layers: 8}\n");
  SampleContents sample(3);
  sample.contents.config_yaml = "base: ../other.yaml\n";
  const Checkpoint checkpoint(save_checkpoint(scratch.path(), sample.contents, 0));
  EXPECT_THAT(error_of<UsageError>([&] { checkpoint.config(); }),
              HasSubstr("config.yaml:1: unknown key 'base'"));
}

TEST(Checkpoint, another_shape_or_name_is_refused) {
  ScratchDirectory scratch;
  const Checkpoint checkpoint(save(scratch.path(), 3));
  EXPECT_THAT(error_of<CheckpointError>([&] {
                checkpoint.parameter("model.norm.weight", {6, 2});
              }),
              HasSubstr("\"model.norm.weight\" is F32 [2,6], expected F32 [6,2]"));
  EXPECT_THAT(error_of<CheckpointError>([&] { checkpoint.parameter("model.norm.bias", {6}); }),
              HasSubstr("no tensor \"model.norm.bias\""));
  EXPECT_THAT(error_of<CheckpointError>([&] {
                checkpoint.slot("model.norm.weight", {2, 6});
              }),
              HasSubstr("no tensor"));
}

TEST(Checkpoint, what_is_not_one_is_the_users_mistake) {
  ScratchDirectory scratch;
  fs::create_directory(scratch / "empty");
  overwrite(scratch / "file", "text");
  for (const auto* const name : {"absent", "empty", "file"}) {
    EXPECT_THAT(error_of<UsageError>([&] { Checkpoint{scratch / name}; }), HasSubstr(name));
  }
}

}  // namespace
}  // namespace dtopp::checkpoint::checkpoint_test
