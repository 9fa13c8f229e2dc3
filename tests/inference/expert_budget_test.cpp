#include "dtopp/inference/expert_budget.h"

#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/moe/make_router.h"
#include "tests/base/scratch_directory.h"
#include "tests/eval/tiny_model.h"

namespace dtopp::inference {
namespace {

InferenceModel tiny(config::ThresholdScope scope) { return eval::tiny_model(eval::tiny_config(scope)); }

std::vector<double> experts_of_layers(const InferenceModel& model, const at::Tensor& tokens_BL,
                                      const moe::Routing& inputs) {
  const at::NoGradGuard no_grad;
  std::vector<double> means;
  for (const ops::RouteOutput& routing : models::hidden_states(model.model, tokens_BL, inputs).routing)
    means.push_back(routing.tokens_per_expert_E.sum().item<double>() /
                    static_cast<double>(tokens_BL.numel()));
  return means;
}

TEST(ExpertBudget, one_threshold_meets_the_mean_over_layers) {
  const InferenceModel model = tiny(config::ThresholdScope::kGlobal);
  const at::Tensor tokens_BL = at::randint(0, 64, {20, 50}, at::kLong);
  for (const double target : {1.5, 4.0, 11.0}) {
    const moe::Routing solved = solve_thresholds(model, tokens_BL, target);
    EXPECT_EQ(solved.router->metric("threshold").size(), 1);
    const auto means = experts_of_layers(model, tokens_BL, solved);
    EXPECT_NEAR((means[0] + means[1] + means[2]) / 3, target, 2e-3 * target);
  }
}

TEST(ExpertBudget, a_threshold_a_layer_meets_it_in_each) {
  const InferenceModel model = tiny(config::ThresholdScope::kLayer);
  const at::Tensor tokens_BL = at::randint(0, 64, {20, 50}, at::kLong);
  const moe::Routing solved = solve_thresholds(model, tokens_BL, 5);
  for (const double mean : experts_of_layers(model, tokens_BL, solved)) EXPECT_NEAR(mean, 5, 0.01);
}

TEST(ExpertBudget, biases_stay_while_the_threshold_is_solved) {
  for (const config::ThresholdScope scope :
       {config::ThresholdScope::kGlobal, config::ThresholdScope::kLayer}) {
    config::RunConfig config = eval::tiny_config(scope);
    config.routing.method = config::RoutingMethod::kDTopPBias;
    InferenceModel model = eval::tiny_model(config);
    model.routing.router = moe::make_router(config, at::kCPU);
    ops::NamedTensors state = model.routing.router->state();
    for (auto& [name, value] : state)
      if (name == "bias_LE") value = at::randn(value.sizes(), at::kDouble);
    model.routing.router->load_state(state);
    const at::Tensor tokens_BL = at::randint(0, 64, {20, 50}, at::kLong);
    const moe::Routing solved = solve_thresholds(model, tokens_BL, 5);
    const auto means = experts_of_layers(model, tokens_BL, solved);
    EXPECT_NEAR((means[0] + means[1] + means[2]) / 3, 5, 0.01);
    // With the biases of a trained router at the same p, the same experts are selected.
    for (auto& [name, value] : state)
      if (name == "threshold_C") value = at::tensor(solved.router->metric("threshold"), at::kDouble);
    model.routing.router->load_state(state);
    EXPECT_EQ(means, experts_of_layers(model, tokens_BL, model.routing));
  }
}

TEST(ExpertBudget, what_cannot_be_met_is_refused) {
  InferenceModel model = tiny(config::ThresholdScope::kGlobal);
  const at::Tensor tokens_BL = at::randint(0, 64, {2, 5}, at::kLong);
  for (const double target : {0.5, 17.0, std::nan("")})
    EXPECT_THROW(solve_thresholds(model, tokens_BL, target), UsageError);
  using enum config::RoutingMethod;
  for (const config::RoutingMethod method : {kTopK, kTopKBias, kRelu, kExpertThreshold}) {
    model.config.routing.method = method;
    EXPECT_THROW(solve_thresholds(model, tokens_BL, 4), UsageError);
  }
}

TEST(SolvingWindows, are_the_beginning_of_a_text_in_whole_windows) {
  std::vector<int64_t> ids(3 * models::kSolveTokens);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  const at::Tensor windows_BL = solving_windows(ids, 1000, "text");
  EXPECT_EQ(windows_BL.sizes(), (at::IntArrayRef{16, 1000}));
  EXPECT_EQ(windows_BL[15][999].item<int64_t>(), 15999);
  EXPECT_EQ(solving_windows(std::span(ids).first(2500), 1000, "text").size(0), 2);
  EXPECT_EQ(solving_windows(std::span(ids).first(7), 1000, "text").sizes(), (at::IntArrayRef{1, 7}));
  EXPECT_EQ(solving_windows(ids, 2 * models::kSolveTokens, "text").sizes(),
            (at::IntArrayRef{1, 2 * models::kSolveTokens}));
  EXPECT_EQ(error_of<DataError>([&] { solving_windows({}, 1000, "empty.txt"); }),
            "empty.txt: holds no tokens; --target-experts needs text to solve p on");
}

using testing::HasSubstr;

double experts_with(const InferenceModel& model, const at::Tensor& tokens_BL,
                    const std::shared_ptr<moe::Router>& router) {
  const at::NoGradGuard no_grad;
  moe::Routing routing = model.routing;
  routing.router = router;
  double sum = 0;
  const auto layers = models::hidden_states(model.model, tokens_BL, routing).routing;
  for (const ops::RouteOutput& layer : layers) sum += layer.tokens_per_expert_E.sum().item<double>();
  return sum / static_cast<double>(layers.size()) / static_cast<double>(tokens_BL.numel());
}

TEST(KeptBudgets, meet_their_number_of_experts_and_survive_the_file) {
  for (const config::ThresholdScope scope :
       {config::ThresholdScope::kGlobal, config::ThresholdScope::kLayer}) {
    ScratchDirectory scratch;
    const config::RunConfig config = eval::tiny_config(scope);
    const checkpoint::Checkpoint checkpoint(eval::save_tiny_checkpoint(scratch / "checkpoints", config),
                                            checkpoint::CheckpointUse::kInference);
    const InferenceModel model = load_inference_model(checkpoint);
    const at::Tensor tokens_BL = at::randint(0, 64, {8, 80}, at::kLong);
    EXPECT_EQ(read_budgets(checkpoint, config), std::nullopt);
    KeptBudgets solved{checkpoint.hash(), hash_of_windows(tokens_BL), {}};
    for (const int64_t experts : {3, 16, 5, 4, 1}) {
      const moe::Routing routing = solve_thresholds(model, tokens_BL, static_cast<double>(experts));
      solved.thresholds[experts] = routing.router->metric("threshold");
      write_budgets(checkpoint, solved);
      EXPECT_EQ(read_budgets(checkpoint, config), solved);
      const auto target = static_cast<double>(experts);
      const auto router = make_budget_router(model, solved.thresholds.at(experts));
      EXPECT_NEAR(experts_with(model, tokens_BL, router), target, 5e-3 * target);
    }
    EXPECT_EQ(solved.thresholds.size(), 5);
    // The file names what is wrong in it, and belongs to one checkpoint.
    KeptBudgets changed = solved;
    changed.checkpoint = "another";
    write_budgets(checkpoint, changed);
    EXPECT_EQ(read_budgets(checkpoint, config), std::nullopt);
    for (const auto& [experts, thresholds, word] :
         {std::tuple{int64_t{17}, std::vector{0.1}, "experts"},
          std::tuple{int64_t{0}, std::vector{0.1}, "experts"},
          std::tuple{int64_t{4}, std::vector{0.1, 0.2}, "thresholds"},
          std::tuple{int64_t{4}, std::vector{1.5}, "thresholds"}}) {
      changed = solved;
      changed.thresholds[experts] = thresholds;
      write_budgets(checkpoint, changed);
      EXPECT_THAT(error_of<DataError>([&] { read_budgets(checkpoint, config); }), HasSubstr(word));
    }
  }
}

TEST(WholeBudgets, are_those_that_a_threshold_reaches) {
  config::RunConfig config = eval::tiny_config();
  EXPECT_EQ(whole_budgets(config).front(), 1);
  EXPECT_EQ(whole_budgets(config).back(), 16);
  EXPECT_EQ(whole_budgets(config).size(), 16U);
  config.routing.max_experts = 5;
  EXPECT_EQ(whole_budgets(config), (std::vector<int64_t>{1, 2, 3, 4, 5}));
  config.routing.method = config::RoutingMethod::kTopK;
  EXPECT_THAT(whole_budgets(config), testing::IsEmpty());
  config = eval::tiny_config();
  config.model.num_experts = 1;
  EXPECT_THAT(whole_budgets(config), testing::IsEmpty());
}

// A layer by token id keeps its experts, so the mean cannot fall to 1 or rise to all.
TEST(WholeBudgets, count_layers_by_token_id_with_their_experts) {
  config::RunConfig config = eval::tiny_config();
  config.model.num_layers = 4;
  config.routing.hash_layers = 1;
  config.routing.experts = {6};
  EXPECT_EQ(config::reachable_experts(config.routing, config.model), std::pair(2.25, 13.5));
  EXPECT_EQ(whole_budgets(config).front(), 3);
  EXPECT_EQ(whole_budgets(config).back(), 13);
  require_target(config, 2.25);
  require_target(config, 13.5);
  EXPECT_THAT(
      error_of<UsageError>([&] { require_target(config, 2); }),
      HasSubstr("2: must be between 2.25 and the model's 13.5 experts; layers that route by token id"));
  EXPECT_THROW(require_target(config, 14), UsageError);
}

}  // namespace

}  // namespace dtopp::inference
