#include "dtopp/eval/expert_budget.h"

#include <unordered_map>

#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/models/initialisation.h"
#include "dtopp/models/parameters.h"

namespace dtopp {
namespace {

InferenceModel tiny(ThresholdScope scope) {
  InferenceModel loaded;
  ModelConfig& config = loaded.config.model;
  config.hidden_size = 16;
  config.num_layers = 3;
  config.num_heads = 2;
  config.ffn_hidden_size = 8;
  config.num_experts = 16;
  config.vocab_size = 64;
  config.init_std = 0.5;
  loaded.config.routing.scope = scope;
  std::unordered_map<std::string, at::Tensor> parameters;
  for (const ParameterSpec& spec : language_model_parameters(config, loaded.config.routing)) {
    at::Tensor tensor = at::empty(spec.shape, at::kFloat);
    initialise(spec, 3, tensor);
    parameters.emplace(spec.name, tensor);
  }
  loaded.model = bind_language_model(config, loaded.config.routing,
                                     [&](const std::string& name) { return parameters.at(name); });
  return loaded;
}

std::vector<double> experts_of_layers(const InferenceModel& model, const at::Tensor& tokens_BL,
                                      const RoutingInputs& inputs) {
  const at::NoGradGuard no_grad;
  std::vector<double> means;
  for (const RouteOutput& routing : hidden_states(model.model, tokens_BL, inputs).routing)
    means.push_back(routing.expert_counts_E.sum().item<double>() / static_cast<double>(tokens_BL.numel()));
  return means;
}

TEST(ExpertBudget, one_threshold_meets_the_mean_over_layers) {
  const InferenceModel model = tiny(ThresholdScope::kGlobal);
  const at::Tensor tokens_BL = at::randint(0, 64, {20, 50}, at::kLong);
  for (const double target : {1.5, 4.0, 11.0}) {
    const RoutingInputs solved = solve_thresholds(model, tokens_BL, target);
    ASSERT_EQ(solved.threshold.size(), 3);
    EXPECT_TRUE(solved.threshold[0].equal(solved.threshold[2]));
    const auto means = experts_of_layers(model, tokens_BL, solved);
    EXPECT_NEAR((means[0] + means[1] + means[2]) / 3, target, 2e-3 * target);
  }
}

TEST(ExpertBudget, a_threshold_a_layer_meets_it_in_each) {
  const InferenceModel model = tiny(ThresholdScope::kLayer);
  const at::Tensor tokens_BL = at::randint(0, 64, {20, 50}, at::kLong);
  const RoutingInputs solved = solve_thresholds(model, tokens_BL, 5);
  for (const double mean : experts_of_layers(model, tokens_BL, solved)) EXPECT_NEAR(mean, 5, 0.01);
}

TEST(ExpertBudget, what_cannot_be_met_is_refused) {
  InferenceModel model = tiny(ThresholdScope::kGlobal);
  const at::Tensor tokens_BL = at::randint(0, 64, {2, 5}, at::kLong);
  for (const double target : {0.5, 17.0, std::nan("")})
    EXPECT_THROW(solve_thresholds(model, tokens_BL, target), UsageError);
  model.config.routing.method = RoutingMethod::kTopK;
  EXPECT_THROW(solve_thresholds(model, tokens_BL, 4), UsageError);
}

}  // namespace
}  // namespace dtopp
