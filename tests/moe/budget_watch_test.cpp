#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/moe/activation_statistics.h"

namespace dtopp::moe {
namespace {

using ::testing::HasSubstr;

config::RoutingConfig routing(config::ThresholdScope scope, std::vector<double> targets) {
  config::RoutingConfig config;
  config.method = config::RoutingMethod::kDTopP;
  config.scope = scope;
  config.experts = std::move(targets);
  return config;
}

// The number of messages within `steps` steps, and the step and text of the last one. `active` gives each
// step's numbers.
struct Said {
  int64_t step = 0;
  int times = 0;
  std::string text{};
};
template <class Active>
Said watch(const config::RoutingConfig& config, int64_t steps, Active active) {
  BudgetWatch budget(config, 1000);
  Said said;
  for (int64_t step = 1; step <= steps; ++step) {
    if (const auto text = budget.observe(step, active(step))) said = {step, said.times + 1, *text};
  }
  return said;
}

constexpr int64_t kFirst = BudgetWatch::kSettling + static_cast<int64_t>(BudgetWatch::kSteps);

std::vector<double> swings(int64_t step) { return {6.5, step % 2 == 0 ? 1.0 : 32.0, 1.0, 1.7}; }

TEST(BudgetWatch, names_a_layer_that_swings_and_says_so_once) {
  const Said said = watch(routing(config::ThresholdScope::kLayer, {6.6, 6.7, 1.0, 1.7}), 400, swings);
  EXPECT_EQ(said.times, 1);
  EXPECT_EQ(said.step, kFirst);
  EXPECT_THAT(said.text,
              HasSubstr("1.0 to 32.0 active experts per token in the last 32 steps of layer 1, target 6.7"));
  EXPECT_THAT(said.text, HasSubstr("routing.controller: solve"));
}

TEST(BudgetWatch, looks_at_the_mean_of_all_layers_where_they_share_a_threshold) {
  const config::RoutingConfig global = routing(config::ThresholdScope::kGlobal, {4});
  const auto empty_and_full = [](int64_t) { return std::vector<double>{1, 7}; };
  EXPECT_EQ(watch(global, 400, empty_and_full).times, 0);
  const Said said = watch(global, 400, [](int64_t) { return std::vector<double>{1, 1.5}; });
  EXPECT_THAT(said.text, HasSubstr("1.2 to 1.2 active experts per token in the last 32 steps, target 4"));
}

TEST(BudgetWatch, is_silent_while_it_settles_and_where_steps_miss_by_less_than_half) {
  const config::RoutingConfig global = routing(config::ThresholdScope::kGlobal, {4});
  const auto late = [](int64_t step) { return std::vector<double>{step <= kFirst - 16 ? 32.0 : 4.0}; };
  EXPECT_EQ(watch(global, kFirst - 1, late).times, 0);
  const auto noisy = [](int64_t step) { return std::vector<double>{step % 2 == 0 ? 2.1 : 5.9}; };
  EXPECT_EQ(watch(global, 400, noisy).times, 0);
}

TEST(BudgetWatch, looks_back_no_further_than_its_steps) {
  const config::RoutingConfig global = routing(config::ThresholdScope::kGlobal, {4});
  const auto begins = [](int64_t step) { return std::vector<double>{step <= 300 ? 4.0 : 32.0}; };
  const Said said = watch(global, 400, begins);
  EXPECT_EQ(said.times, 1);
  EXPECT_GT(said.step, 300);
  EXPECT_LE(said.step, 300 + static_cast<int64_t>(BudgetWatch::kSteps));
}

TEST(BudgetWatch, has_nothing_to_say_of_other_methods_and_of_dense_models) {
  config::RoutingConfig top_p = routing(config::ThresholdScope::kGlobal, {4});
  top_p.method = config::RoutingMethod::kTopP;
  EXPECT_EQ(watch(top_p, 400, [](int64_t) { return std::vector<double>{32}; }).times, 0);
  const auto none = [](int64_t) { return std::vector<double>(); };
  EXPECT_EQ(watch(routing(config::ThresholdScope::kGlobal, {4}), 400, none).times, 0);
}

}  // namespace
}  // namespace dtopp::moe
