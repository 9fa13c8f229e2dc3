// Tests controllers in a closed loop with simulated routers: how fast they reach the budget and how well they
// hold it.
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "dtopp/moe/make_router.h"
#include "tests/moe/simulated_routing.h"

namespace dtopp::moe::controller_settling_test {
namespace {

struct Case {
  int64_t num_experts;
  double target, first_threshold;
  config::ThresholdScope scope = config::ThresholdScope::kGlobal;
};

config::RoutingConfig solving(const Case& of) {
  config::RoutingConfig config;
  config.controller = config::Controller::kSolve;
  config.threshold = of.first_threshold;
  config.experts = {of.target};
  config.scope = of.scope;
  return config;
}

// The relative error of the mean experts per token, (mean - T) / T. With per-layer control, the error of the
// layer that is furthest off.
double miss(const RoutedStep& step, const ThresholdController& controller, double target) {
  const at::Tensor mean_L = step.num_assignments_L.to(at::kDouble) / static_cast<double>(step.tokens);
  const at::Tensor off = (controller.per_layer() ? mean_L : mean_L.mean()) / target - 1;
  const at::Tensor flat = off.reshape({-1});
  return flat[flat.abs().argmax()].item<double>();
}

std::vector<double> misses(const config::RoutingConfig& config, int64_t num_experts, int steps,
                           const std::function<std::vector<SimulatedLayer>(int step)>& batch) {
  ThresholdController controller(config, num_experts, static_cast<int64_t>(batch(0).size()));
  std::vector<double> off;
  for (int i = 0; i < steps; ++i) {
    const RoutedStep step = simulated_step(batch(i), controller);
    off.push_back(miss(step, controller, config.experts[0]));
    controller.update(step, at::full({}, true, at::kBool));
  }
  return off;
}

double mean_of(const std::vector<double>& values, size_t begin, size_t count) {
  return std::accumulate(values.begin() + static_cast<int64_t>(begin),
                         values.begin() + static_cast<int64_t>(begin + count), 0.0) /
         static_cast<double>(count);
}

void expect_held(const std::vector<double>& off, double of_a_step, double of_twenty) {
  for (size_t i = 2; i < off.size(); ++i) EXPECT_LE(std::abs(off[i]), of_a_step) << "step " << i + 1;
  for (size_t i = 2; i + 20 <= off.size(); ++i)
    EXPECT_LE(std::abs(mean_of(off, i, 20)), of_twenty) << "steps from " << i + 1;
}

TEST(SolvingControllerSlow, holds_any_budget_from_the_third_step_on) {
  for (const double theta : {0.3, 1.0, 3.0}) {
    for (const int64_t experts : {8, 64, 512}) {
      const int64_t tokens = experts < 512 ? 2048 : 1024;
      const std::vector<SimulatedLayer> layers = {simulated_layer({tokens, experts, theta}, 1),
                                                  simulated_layer({tokens, experts, 1.5 * theta}, 2)};
      for (const double target : {1.5, 4.0, static_cast<double>(experts) / 2}) {
        for (const double first : {0.01, 0.25, 0.99}) {
          for (const auto scope : {config::ThresholdScope::kGlobal, config::ThresholdScope::kLayer}) {
            SCOPED_TRACE(testing::Message() << theta << " " << experts << " " << target << " " << first);
            const auto off =
                misses(solving({experts, target, first, scope}), experts, 24, [&](int) { return layers; });
            expect_held(off, 0.01, 0.001);
          }
        }
      }
    }
  }
}

TEST(SolvingController, holds_it_where_the_sets_are_capped) {
  config::RoutingConfig config = solving({32, 3.0, 0.25});
  config.max_experts = 4;
  const std::vector<SimulatedLayer> layers = {simulated_layer({4096, 32, 1.0, 4}, 3)};
  expect_held(misses(config, 32, 30, [&](int) { return layers; }), 0.01, 0.001);
}

TEST(SolvingController, pays_back_what_a_jump_cost) {
  // The routers sharpen in one step, as when the data changes. That step misses by far; the mean does not.
  const SimulatedLayer calm = simulated_layer({8192, 32}, 4), sharp = simulated_layer({8192, 32, 1.3}, 4);
  const auto off = misses(solving({32, 4.0, 0.25}), 32, 60,
                          [&](int step) { return std::vector{step < 30 ? calm : sharp}; });
  EXPECT_GT(std::abs(off[30]), 0.1);
  EXPECT_LT(std::abs(mean_of(off, 29, 20)), 0.001);
  for (size_t i = 45; i < off.size(); ++i) EXPECT_LT(std::abs(off[i]), 0.001);
}

TEST(SolvingController, has_no_lag_where_routers_sharpen_steadily) {
  const auto batch = [](int step) {
    return std::vector{simulated_layer({2048, 32, std::exp(0.01 * step)}, 5)};
  };
  const auto off = misses(solving({32, 4.0, 0.25}), 32, 60, batch);
  EXPECT_LT(std::abs(mean_of(off, 20, 40)), 0.001);
  for (size_t i = 20; i < off.size(); ++i) EXPECT_LT(std::abs(off[i]), 0.01) << i;
}

TEST(SolvingController, follows_new_batches_within_their_noise) {
  const auto batch = [](int step) {
    return std::vector{simulated_layer({1024, 64, 1.0, 0, 4}, 100 + static_cast<uint64_t>(step))};
  };
  const auto off = misses(solving({64, 8.0, 0.25}), 64, 60, batch);
  // The mean of a batch is off by 1.5 / 8 / sqrt(1024) = 0.006 of T.
  for (size_t i = 2; i < off.size(); ++i) EXPECT_LT(std::abs(off[i]), 5 * 0.006) << i;
  for (size_t i = 2; i + 20 <= off.size(); ++i) EXPECT_LT(std::abs(mean_of(off, i, 20)), 0.002) << i;
}

// The target rises by 0.5 % of its end per step; the logits' distribution does not change.
TEST(SolvingControllerSettling, follows_a_schedule_within_a_percent) {
  config::RunConfig config;
  config.model.num_layers = 1;
  config.model.num_experts = 32;
  config.model.sequence_length = 8;
  config.training.steps = 200;
  config.routing.controller = config::Controller::kSolve;
  config.routing.normalization = config::Normalization::kNone;
  config.routing.experts = {8};
  config.routing.schedule = {4, 8};
  config.routing.schedule_at = {0, 1};
  const auto router = make_router(config, at::kCPU);
  at::manual_seed(3);
  for (int64_t step = 0; step < 200; ++step) {
    router->set_step(step);
    const ops::RouteOutput output =
        router->select({0, at::randn({8192, 32}), at::ones({}), /*training=*/true});
    const double target = config::mean_experts_at(config.routing, step, 200);
    const double active = output.tokens_per_expert_E.sum().item<double>() / 8192;
    EXPECT_TRUE(step < 3 || std::abs(active - target) < 0.01 * target + 0.02) << step << " " << active;
    router->update({output.tokens_per_expert_E.view({1, -1}), 8192, output.statistics.view({1, -1})},
                   at::ones({}, at::kBool));
  }
}

}  // namespace
}  // namespace dtopp::moe::controller_settling_test
