#include "dtopp/models/model.h"

#include <algorithm>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "dtopp/models/batch.h"
#include "dtopp/models/batch_losses.h"
#include "dtopp/models/make_model.h"
#include "tests/moe/fixed_threshold.h"

namespace dtopp::models {
namespace {

config::RunConfig small() {
  config::RunConfig config;
  config.model.hidden_size = 8;
  config.model.num_layers = 2;
  config.model.num_heads = 2;
  config.model.ffn_hidden_size = 4;
  config.model.num_experts = 4;
  config.model.vocab_size = 16;
  config.model.sequence_length = 6;
  config.routing.experts = {2};
  return config;
}

// A model's record lists every parameter that binding looks up, and no other.
TEST(Model, looks_up_the_parameters_it_lists_in_their_order) {
  for (const int64_t experts : {4, 1}) {
    for (const bool tied : {true, false}) {
      config::RunConfig config = small();
      config.model.num_experts = experts;
      config.model.tie_embeddings = tied;
      const Model model = make_model(config);
      std::vector<std::string> listed, used;
      std::map<std::string, at::Tensor> tensors;
      for (const parameters::ParameterSpec& spec : model.parameters) {
        EXPECT_TRUE(tensors.emplace(spec.name, at::ones(spec.shape)).second);
        listed.push_back(spec.name);
      }
      const LossFunction losses = model.bind([&](const std::string& name) {
        if (std::ranges::find(used, name) == used.end()) used.push_back(name);
        return tensors.at(name);
      });
      const Batch batch{3, {{"tokens", at::zeros({2, model.tokens_per_sample + 1}, at::kLong)}}};
      const BatchLosses result = losses(batch, moe::fixed_threshold(config, 0.5));
      EXPECT_EQ(used, listed);
      EXPECT_NO_THROW(result.value(model.validation_loss));
      EXPECT_THROW(result.value("no_such_loss"), std::invalid_argument);
      EXPECT_EQ(result.activations.num_layers(), model.num_routed_layers);
    }
  }
}

TEST(Model, parameters_say_what_they_are_for) {
  const Model model = make_model(small());
  std::map<parameters::ParameterRole, int> roles;
  for (const parameters::ParameterSpec& spec : model.parameters) {
    roles[spec.role] += 1;
    const bool decays = spec.shape.size() > 1;
    EXPECT_EQ(spec.weight_decay(), decays) << spec.name;
    EXPECT_EQ(spec.initial.distribution,
              decays ? parameters::Distribution::kTruncatedNormal : parameters::Distribution::kOne)
        << spec.name;
  }
  const std::map<parameters::ParameterRole, int> expected = {
      {parameters::ParameterRole::kMatrix, 8},     {parameters::ParameterRole::kExpert, 4},
      {parameters::ParameterRole::kTiedLookUp, 1}, {parameters::ParameterRole::kGain, 9},
      {parameters::ParameterRole::kRouter, 2},     {parameters::ParameterRole::kRouterScale, 2}};
  EXPECT_EQ(roles, expected);
}

TEST(Batch, finds_tensors_by_name) {
  const Batch batch{7, {{"images", at::ones({2})}, {"labels", at::zeros({2})}}};
  EXPECT_TRUE(batch.tensor("labels").equal(at::zeros({2})));
  EXPECT_THROW(batch.tensor("tokens"), std::invalid_argument);
  const Batch moved = batch.to(at::kCPU);
  EXPECT_EQ(moved.position, 7U);
  EXPECT_TRUE(moved.tensor("images").equal(at::ones({2})));
}

}  // namespace
}  // namespace dtopp::models
