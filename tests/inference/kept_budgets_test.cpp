#include "dtopp/inference/kept_budgets.h"

#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/inference/expert_budget.h"
#include "tests/base/scratch_directory.h"
#include "tests/eval/tiny_model.h"

namespace dtopp::inference {
namespace {

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

TEST(KeptBudgets, end_at_the_limit_of_experts) {
  config::RunConfig config = eval::tiny_config();
  EXPECT_EQ(largest_budget(config), 16);
  config.routing.max_experts = 5;
  EXPECT_EQ(largest_budget(config), 5);
  config.routing.method = config::RoutingMethod::kTopK;
  EXPECT_EQ(largest_budget(config), 0);
  config = eval::tiny_config();
  config.model.num_experts = 1;
  EXPECT_EQ(largest_budget(config), 0);
}

}  // namespace
}  // namespace dtopp::inference
