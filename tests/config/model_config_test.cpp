#include "dtopp/config/model_config.h"

#include <map>

#include "tests/config/run_config_fixture.h"

namespace dtopp::config {
namespace {

class DiffusionConfigTest : public RunConfigTest {};

TEST_F(DiffusionConfigTest, each_type_of_model_has_keys_of_its_own) {
  const std::string image = kImages;
  const RunConfig config = load({image, "model.image_size=64", "diffusion.sample_classes=[3, 1]"});
  EXPECT_EQ(config.model.tokens_per_sample(), 32 * 32);
  EXPECT_EQ(config.diffusion.sample_classes, (std::vector<int64_t>{3, 1}));
  const std::string printed = to_yaml(config);
  EXPECT_THAT(printed, testing::HasSubstr("\ndiffusion:\n  objective: flow\n"));
  EXPECT_THAT(printed, testing::Not(testing::HasSubstr("lm_z")));
  EXPECT_EQ(to_yaml(parse_run_config(printed, "printed")), printed);
  EXPECT_THAT(to_yaml(load({})), testing::Not(testing::HasSubstr("diffusion")));
  EXPECT_THAT(error({image, "loss.lm_z=0"}), testing::HasSubstr("unknown key 'loss.lm_z'"));
  EXPECT_THAT(error({image, "model.vocab_size=9"}), testing::HasSubstr("unknown key 'model.vocab_size'"));
  EXPECT_THAT(error({image, "model.attend_across_documents=false"}), testing::HasSubstr("unknown key"));
  EXPECT_THAT(error({image, "data.end_of_text=9"}), testing::HasSubstr("unknown key"));
  EXPECT_THAT(error({"diffusion.objective=ddpm"}), testing::HasSubstr("unknown key 'diffusion"));
}

TEST_F(DiffusionConfigTest, impossible_diffusion_transformers_name_the_key) {
  const std::map<std::vector<std::string>, std::string> cases = {
      {{"model.patch_size=3"}, "model.patch_size: 3 does not divide image_size 32"},
      {{"model.patch_size=64"}, "model.patch_size: must lie in [1, 32], is 64"},
      {{"model.channels=4097"}, "model.channels: must lie in [1, 4096], is 4097"},
      {{"model.num_classes=-1"}, "model.num_classes: must lie in [0, 2147483647], is -1"},
      {{"model.text_size=8"}, "model.text_length: is missing; a model has no default size"},
      {{"model.text_length=8"}, "model.text_size: is missing; a model has no default size"},
      {{"model.hidden_size=48", "model.num_heads=8"},
       "model.num_heads: hidden_size 48 over 8 heads gives a head size of 6; rotary positions of images need "
       "a multiple of 4"},
      {{"model.hidden_size=42", "model.num_heads=2", "model.position=sincos"},
       "model.hidden_size: hidden_size 42 is not a multiple of 4; sincos positions need one"},
      {{"diffusion.condition_dropout=1"}, "diffusion.condition_dropout: must lie in [0, 1), is 1.0"},
      {{"diffusion.ema_decay=-0.5"}, "diffusion.ema_decay: must lie in [0, 1), is -0.5"},
      {{"diffusion.samples_every=-1"}, "diffusion.samples_every: must be at least 0"},
      {{"diffusion.sample_classes=[1000]"},
       "diffusion.sample_classes: 1000 is not one of the model's 1000 classes"},
      {{"validation.tasks=[hellaswag]"}, "validation.tasks: need a language model; leave them out"},
  };
  for (const auto& [overrides, expected] : cases) {
    std::vector<std::string> all = {kImages};
    all.insert(all.end(), overrides.begin(), overrides.end());
    EXPECT_THAT(error(all), testing::EndsWith(expected));
  }
}

}  // namespace

}  // namespace dtopp::config
