#include "dtopp/moe/threshold_controller.h"

#include <cmath>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "dtopp/moe/gain_guard.h"

namespace dtopp {
namespace {

RoutingConfig routing(double p0 = 0.25, double target = 8, double kp = 0.1, double ki = 0.1) {
  RoutingConfig config;
  config.threshold = p0;
  config.target_experts = {target};
  config.kp = kp;
  config.ki = ki;
  return config;
}

TEST(ThresholdController, follows_equation_five_by_hand) {
  ThresholdController controller(routing(), 64, 2);
  EXPECT_EQ(controller.threshold(0), 0.25);
  // 1000 tokens, layers with 10 and 14 experts a token: a = 12, e = (8 - 12) / 64 = -1/16.
  const std::vector<int64_t> first = {10000, 14000};
  controller.update(first, 1000);
  EXPECT_DOUBLE_EQ(controller.threshold(0), 0.25 + 0.1 * (-1.0 / 16) + 0.1 * (-1.0 / 16));
  // a = 4, e = 1/16: the sum is back at 0.
  const std::vector<int64_t> second = {4000, 4000};
  controller.update(second, 1000);
  EXPECT_DOUBLE_EQ(controller.threshold(1), 0.25 + 0.1 / 16);
  EXPECT_DOUBLE_EQ(controller.error_sums().at(0), 0.0);
}

TEST(ThresholdController, layers_are_independent_with_layer_scope) {
  RoutingConfig config = routing();
  config.scope = ThresholdScope::kLayer;
  config.target_experts = {4, 8, 12};
  ThresholdController controller(config, 64, 3);
  const std::vector<int64_t> selected = {4 * 500, 6 * 500, 20 * 500};
  controller.update(selected, 500);
  EXPECT_DOUBLE_EQ(controller.threshold(0), 0.25);
  EXPECT_DOUBLE_EQ(controller.threshold(1), 0.25 + 0.2 * (2.0 / 64));
  EXPECT_DOUBLE_EQ(controller.threshold(2), 0.25 + 0.2 * (-8.0 / 64));
}

TEST(ThresholdController, is_constant_for_fixed_top_p) {
  RoutingConfig config = routing(0.4);
  config.method = RoutingMethod::kTopP;
  ThresholdController controller(config, 64, 2);
  const std::vector<int64_t> selected = {64000, 64000};
  controller.update(selected, 1000);
  EXPECT_EQ(controller.threshold(0), 0.4);
  EXPECT_EQ(controller.error_sums(), std::vector<double>{0.0});
}

TEST(ThresholdController, anti_windup_leaves_the_bound_at_once_when_the_error_turns) {
  // Every expert is asked for and none beyond one can be had: p runs into its upper bound.
  const std::vector<int64_t> starved = {1000};
  const std::vector<int64_t> flooded = {64000};
  RoutingConfig config = routing(0.9, 32, 0.1, 0.1);
  ThresholdController guarded(config, 64, 1);
  config.anti_windup = false;
  ThresholdController winding(config, 64, 1);
  for (int step = 0; step < 200; ++step) {
    guarded.update(starved, 1000);
    winding.update(starved, 1000);
  }
  EXPECT_EQ(guarded.threshold(0), kMaxThreshold);
  EXPECT_EQ(winding.threshold(0), kMaxThreshold);
  EXPECT_LT(guarded.error_sums()[0], 1.1);
  EXPECT_GT(winding.error_sums()[0], 90);
  guarded.update(flooded, 1000);
  winding.update(flooded, 1000);
  EXPECT_LT(guarded.threshold(0), 0.95);
  EXPECT_EQ(winding.threshold(0), kMaxThreshold);  // still unwinding
}

TEST(ThresholdController, is_the_papers_law_wherever_nothing_clips) {
  rc::check("anti-windup changes nothing inside the bounds", [] {
    const RoutingConfig config = routing(0.5, 8, 0.05, 0.02);
    ThresholdController controller(config, 64, 1);
    const auto counts = *rc::gen::container<std::vector<int64_t>>(20, rc::gen::inRange<int64_t>(1000, 16000));
    double sum = 0;
    for (const int64_t count : counts) {
      const std::vector<int64_t> selected = {count};
      controller.update(selected, 1000);
      const double error = (8.0 - static_cast<double>(count) / 1000.0) / 64.0;
      sum += error;
      RC_ASSERT(std::abs(controller.threshold(0) - (0.5 + 0.05 * error + 0.02 * sum)) < 1e-12);
    }
  });
}

TEST(ThresholdController, stays_inside_its_bounds_whatever_happens) {
  rc::check([] {
    const double kp = *rc::gen::inRange(0, 50) * 0.1;
    const double ki = *rc::gen::inRange(0, 50) * 0.1;
    ThresholdController controller(routing(0.25, 8, kp, ki), 64, 1);
    for (const int64_t count :
         *rc::gen::container<std::vector<int64_t>>(50, rc::gen::inRange<int64_t>(100, 6400))) {
      const std::vector<int64_t> selected = {count};
      controller.update(selected, 100);
      RC_ASSERT(controller.threshold(0) >= kMinThreshold && controller.threshold(0) <= kMaxThreshold);
    }
  });
}

TEST(ThresholdController, restores_to_the_same_future) {
  ThresholdController a(routing(), 64, 1);
  const std::vector<int64_t> first = {12345};
  a.update(first, 1000);
  ThresholdController b(routing(), 64, 1);
  b.restore(a.thresholds(), a.error_sums());
  const std::vector<int64_t> second = {6789};
  a.update(second, 1000);
  b.update(second, 1000);
  EXPECT_EQ(a.threshold(0), b.threshold(0));
  EXPECT_THROW(b.restore({0.1, 0.2}, {0.0, 0.0}), std::invalid_argument);
}

}  // namespace
}  // namespace dtopp
