// Tests what the trainer requires of a model: losses by name, its batches, and routers if there are any.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "tiny_model.h"

namespace dtopp::train {
namespace {

// A model that lists its losses in another order and names another one for validation.
TEST(Trainer, validation_finds_its_loss_by_name) {
  const config::RunConfig config = tiny();
  models::Model reversed = models::make_model(config);
  reversed.bind = [bind = reversed.bind](const models::ParameterLookup& parameter) -> models::LossFunction {
    return [losses = bind(parameter)](const models::Batch& batch, const moe::Routing& inputs) {
      models::BatchLosses result = losses(batch, inputs);
      std::reverse(result.values.begin(), result.values.end());
      return result;
    };
  };
  models::Model other = models::make_model(config);
  other.validation_loss = "lm_z_loss";
  Trainer plain = trainer_of(config);
  Trainer by_name(config, reversed, data_for(config), at::kFloat);
  Trainer z(config, other, data_for(config), at::kFloat);
  for (Trainer* trainer : {&plain, &by_name, &z}) trainer->initialize();
  const double loss = plain.validate(36, never)->loss;
  EXPECT_EQ(by_name.validate(36, never)->loss, loss);
  EXPECT_NEAR(z.validate(36, never)->loss, std::log(64.0) * std::log(64.0), 0.5);
  EXPECT_NEAR(loss, std::log(64.0), 0.1);
}

TEST(Trainer, gives_batches_their_global_position) {
  const config::RunConfig config = tiny();
  models::Model model = models::make_model(config);
  std::vector<uint64_t> positions;
  model.bind = [&, bind = model.bind](const models::ParameterLookup& parameter) -> models::LossFunction {
    return [&, losses = bind(parameter)](const models::Batch& batch, const moe::Routing& inputs) {
      positions.push_back(batch.position);
      return losses(batch, inputs);
    };
  };
  Trainer trainer(config, model, data_for(config), at::kFloat);
  trainer.initialize();
  step(trainer);
  step(trainer);
  EXPECT_EQ(positions, (std::vector<uint64_t>{0, 2, 4, 6}));
}

// A dense model does not read its routing section, so validation accepts anything there.
TEST(Trainer, a_dense_model_needs_no_target) {
  config::RunConfig config = tiny();
  config.model.num_experts = 1;
  config.routing.experts = {};
  config::validate_values(config);
  Trainer trainer = trainer_of(config);
  trainer.initialize();
  EXPECT_FALSE(step(trainer).skipped);
}

}  // namespace
}  // namespace dtopp::train
