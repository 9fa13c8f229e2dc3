#include "dtopp/moe/dtop_p.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "dtopp/ops/route/cumulative_prob_bins.h"

namespace dtopp::moe::threshold_controller_test {
namespace {

config::RoutingConfig routing(double p0 = 0.25, double target = 8, double kp = 0.1, double ki = 0.1) {
  config::RoutingConfig config;
  config.threshold = p0;
  config.experts = {target};
  config.kp = kp;
  config.ki = ki;
  return config;
}

void update(ThresholdController& controller, const std::vector<int64_t>& selected, int64_t tokens,
            bool applied = true) {
  controller.update({at::tensor(selected, at::kLong), tokens}, at::full({}, applied, at::kBool));
}

double p_of(const ThresholdController& controller, int64_t layer = 0) {
  return controller.threshold(layer).item<double>();
}

ops::StateTensors state_of(ThresholdController& controller) {
  ops::StateTensors list;
  controller.list_state(list);
  return list;
}

double error_sum_of(ThresholdController& controller) {
  return state_of(controller)[1].second->item<double>();
}

TEST(ThresholdController, follows_equation_five_by_hand) {
  ThresholdController controller(routing(), 64, 2);
  EXPECT_EQ(p_of(controller), 0.25);
  // 1000 tokens; the layers have 10 and 14 experts per token: a = 12, e = (8 - 12) / 64 = -1/16.
  const std::vector<int64_t> first = {10000, 14000};
  update(controller, first, 1000);
  EXPECT_DOUBLE_EQ(p_of(controller), 0.25 + 0.1 * (-1.0 / 16) + 0.1 * (-1.0 / 16));
  // a = 4, e = 1/16: the sum is back at 0.
  const std::vector<int64_t> second = {4000, 4000};
  update(controller, second, 1000);
  EXPECT_DOUBLE_EQ(p_of(controller, 1), 0.25 + 0.1 / 16);
  EXPECT_DOUBLE_EQ(error_sum_of(controller), 0.0);
}

TEST(ThresholdController, moves_from_the_threshold_that_it_starts_at) {
  ThresholdController controller(routing(), 64, 2);
  controller.start_at({0.6});
  EXPECT_EQ(p_of(controller), 0.6);
  update(controller, {8000, 8000}, 1000);  // a = T
  EXPECT_DOUBLE_EQ(p_of(controller), 0.6);
  update(controller, {10000, 14000}, 1000);  // e = -1/16
  EXPECT_DOUBLE_EQ(p_of(controller), 0.6 - 0.2 / 16);
}

TEST(ThresholdController, layers_are_independent_with_layer_scope) {
  config::RoutingConfig config = routing();
  config.scope = config::ThresholdScope::kLayer;
  config.experts = {4, 8, 12};
  ThresholdController controller(config, 64, 3);
  const std::vector<int64_t> selected = {4 * 500, 6 * 500, 20 * 500};
  update(controller, selected, 500);
  EXPECT_DOUBLE_EQ(p_of(controller), 0.25);
  EXPECT_DOUBLE_EQ(p_of(controller, 1), 0.25 + 0.2 * (2.0 / 64));
  EXPECT_DOUBLE_EQ(p_of(controller, 2), 0.25 + 0.2 * (-8.0 / 64));
}

TEST(ThresholdController, anti_windup_leaves_the_bound_at_once_when_the_error_turns) {
  // The target is 32 experts, but each token has one: p rises to its upper bound.
  const std::vector<int64_t> starved = {1000};
  const std::vector<int64_t> flooded = {64000};
  config::RoutingConfig config = routing(0.9, 32, 0.1, 0.1);
  ThresholdController guarded(config, 64, 1);
  config.anti_windup = false;
  ThresholdController winding(config, 64, 1);
  for (int step = 0; step < 200; ++step) {
    update(guarded, starved, 1000);
    update(winding, starved, 1000);
  }
  EXPECT_EQ(p_of(guarded), kMaxThreshold);
  EXPECT_EQ(p_of(winding), kMaxThreshold);
  EXPECT_LT(error_sum_of(guarded), 1.1);
  EXPECT_GT(error_sum_of(winding), 90);
  update(guarded, flooded, 1000);
  update(winding, flooded, 1000);
  EXPECT_LT(p_of(guarded), 0.95);
  EXPECT_EQ(p_of(winding), kMaxThreshold);  // the sum is still unwinding
}

TEST(ThresholdController, is_the_papers_law_wherever_nothing_clips) {
  rc::check("anti-windup changes nothing inside the bounds", [] {
    const config::RoutingConfig config = routing(0.5, 8, 0.05, 0.02);
    ThresholdController controller(config, 64, 1);
    const auto counts = *rc::gen::container<std::vector<int64_t>>(20, rc::gen::inRange<int64_t>(1000, 16000));
    double sum = 0;
    for (const int64_t count : counts) {
      const std::vector<int64_t> selected = {count};
      update(controller, selected, 1000);
      const double error = (8.0 - static_cast<double>(count) / 1000.0) / 64.0;
      sum += error;
      RC_ASSERT(std::abs(p_of(controller) - (0.5 + 0.05 * error + 0.02 * sum)) < 1e-12);
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
      update(controller, selected, 100);
      RC_ASSERT(p_of(controller) >= kMinThreshold && p_of(controller) <= kMaxThreshold);
    }
  });
}

// The control law in plain doubles, for one controller.
struct PlainController {
  config::RoutingConfig config;
  int64_t num_experts;
  double p, error_sum = 0;

  void update(double active_experts) {
    const double error = (config.experts[0] - active_experts) / static_cast<double>(num_experts);
    const double sum = error_sum + error;
    p = config.threshold + config.kp * error + config.ki * sum;
    const bool winds_up = (p > kMaxThreshold && error > 0) || (p < kMinThreshold && error < 0);
    if (!(config.anti_windup && winds_up)) error_sum = sum;
    p = std::clamp(p, kMinThreshold, kMaxThreshold);
  }
};

TEST(ThresholdController, has_the_bits_of_plain_doubles) {
  rc::check([](bool anti_windup) {
    config::RoutingConfig config =
        routing(0.3, 7.3, *rc::gen::inRange(0, 30) * 0.1, *rc::gen::inRange(0, 30) * 0.1);
    config.anti_windup = anti_windup;
    ThresholdController controller(config, 48, 3);
    PlainController plain{config, 48, config.threshold};
    for (const int64_t count :
         *rc::gen::container<std::vector<int64_t>>(40, rc::gen::inRange<int64_t>(997, 48 * 997))) {
      update(controller, {count, 5000, 997}, 997);
      plain.update(static_cast<double>(count + 5997) / static_cast<double>(997 * 3));
      RC_ASSERT(p_of(controller) == plain.p);
      RC_ASSERT(error_sum_of(controller) == plain.error_sum);
    }
  });
}

TEST(ThresholdController, a_step_that_is_not_applied_does_not_move_it) {
  ThresholdController controller(routing(), 64, 1);
  update(controller, {12345}, 1000);
  const double p = p_of(controller), sum = error_sum_of(controller);
  update(controller, {54321}, 1000, /*applied=*/false);
  EXPECT_EQ(p_of(controller), p);
  EXPECT_EQ(error_sum_of(controller), sum);
}

TEST(ThresholdController, restores_to_the_same_future) {
  ThresholdController a(routing(), 64, 1);
  const std::vector<int64_t> first = {12345};
  update(a, first, 1000);
  ThresholdController b(routing(), 64, 1);
  const ops::StateTensors from = state_of(a), to = state_of(b);
  for (size_t i = 0; i < to.size(); ++i) {
    EXPECT_EQ(to[i].first, from.at(i).first);
    *to[i].second = *from[i].second;
  }
  const std::vector<int64_t> second = {6789};
  update(a, second, 1000);
  update(b, second, 1000);
  EXPECT_EQ(p_of(a), p_of(b));
  EXPECT_EQ(to.size(), 3);
}

// solve omits the error of the first step, whose p the user chose, but of no later step with the same p.
TEST(ThresholdController, counts_its_steps_to_tell_the_first_one) {
  config::RoutingConfig config = routing(0.5, 2);
  config.controller = config::Controller::kSolve;
  ThresholdController controller(config, 4, 1);
  at::Tensor histogram_CM = at::zeros({1, ops::kCumulativeProbBins});
  histogram_CM.fill_(1);
  const auto step = [&] {
    controller.update({at::tensor({3000}, at::kLong), 1000, histogram_CM}, at::full({}, true, at::kBool));
  };
  step();
  EXPECT_EQ(error_sum_of(controller), 0);
  *state_of(controller)[0].second = at::full({1}, 0.5, at::kDouble);  // returns to p_0
  step();
  EXPECT_EQ(error_sum_of(controller), -0.25);
}

}  // namespace

}  // namespace dtopp::moe::threshold_controller_test
