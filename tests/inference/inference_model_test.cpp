#include "dtopp/inference/inference_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "tests/base/scratch_directory.h"
#include "tests/eval/tiny_model.h"
#include "tests/tasks/evaluation_data.h"

namespace dtopp::inference {
namespace {

using testing::HasSubstr;

// The checkpoint lies outside a run folder. It has no optimizer file and its configuration names no training
// data. Its configuration file changes after it was verified.
TEST(InferenceModel, is_read_from_a_checkpoint_alone) {
  ScratchDirectory scratch;
  const config::RunConfig config = eval::tiny_config();
  const auto path = eval::save_tiny_checkpoint(scratch.path(), config);
  const checkpoint::Checkpoint checkpoint(path, checkpoint::CheckpointUse::kInference);
  write_file_atomically(path / "config.yaml", "base: elsewhere.yaml\n");
  const InferenceModel loaded = load_inference_model(checkpoint);
  EXPECT_EQ(config::to_yaml(loaded.config), config::to_yaml(config));
  EXPECT_EQ(loaded.routing.router->metric("threshold"), std::vector<double>{0.4});

  const at::NoGradGuard no_grad;
  const at::Tensor tokens_BL = at::arange(30, at::kLong).view({2, 15});
  const auto states = [&](const InferenceModel& model) {
    return models::hidden_states(model.model, tokens_BL, loaded.routing).x_TD;
  };
  EXPECT_TRUE(states(loaded).equal(states(eval::tiny_model(config))));
}

TEST(InferenceModel, of_another_configuration_is_refused) {
  ScratchDirectory scratch;
  config::RunConfig config = eval::tiny_config();
  const auto path = eval::save_tiny_checkpoint(scratch.path(), config);
  config.model.hidden_size = 32;
  checkpoint::CheckpointContents other;
  other.config_yaml = config::to_yaml(config);
  other.state.step = 9;
  checkpoint::OneProcess alone;
  const checkpoint::Checkpoint checkpoint(checkpoint::save_checkpoint(scratch.path(), other, 0, alone),
                                          checkpoint::CheckpointUse::kInference);
  EXPECT_THAT(error_of<CheckpointError>([&] { load_inference_model(checkpoint); }), HasSubstr("no tensor"));
  load_inference_model(checkpoint::Checkpoint(path, checkpoint::CheckpointUse::kInference));
}

TEST(LoadTokenizer, takes_the_checkpoints_own_and_no_other) {
  ScratchDirectory scratch;
  const data::Tokenizer& shipped = tasks::shipped_tokenizer();
  config::RunConfig config = eval::tiny_config();
  const auto bare_path = eval::save_tiny_checkpoint(scratch / "bare", config);
  const auto path = eval::save_tiny_checkpoint(scratch / "own", config, shipped.file_text());
  const checkpoint::Checkpoint bare(bare_path, checkpoint::CheckpointUse::kInference),
      own(path, checkpoint::CheckpointUse::kInference);
  const auto same = scratch / "same.json", other = scratch / "other.json";
  write_file_atomically(same, shipped.file_text());
  write_file_atomically(other, shipped.file_text() + "\n");
  EXPECT_EQ(load_tokenizer(own, "", 50432).hash(), shipped.hash());
  EXPECT_EQ(load_tokenizer(own, same, 50432).hash(), shipped.hash());
  EXPECT_NE(load_tokenizer(bare, other, 50432).hash(), shipped.hash());
  EXPECT_THAT(error_of<UsageError>([&] { load_tokenizer(own, other, 50432); }), HasSubstr("differs from"));
  EXPECT_THAT(error_of<UsageError>([&] { load_tokenizer(bare, "", 50432); }), HasSubstr("pass --tokenizer"));
  EXPECT_THAT(error_of<UsageError>([&] { load_tokenizer(own, "", 64); }),
              HasSubstr("model.vocab_size of 64"));
}

TEST(DescribeModel, says_how_large_it_is_and_what_it_was_trained_on) {
  config::RunConfig config = eval::tiny_config();
  config.model.num_experts = 1;
  // embedding 64 x 16; each layer 4 x 16^2 + 4 x 16 and 3 x 16 x 8; the last norm 16
  EXPECT_EQ(describe_model(config, 4'194'304),
            "5.46k parameters (5.46k active per token), after 4.19M tokens");
}

}  // namespace
}  // namespace dtopp::inference
