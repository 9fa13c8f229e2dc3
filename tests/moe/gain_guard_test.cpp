#include "dtopp/moe/gain_guard.h"

#include <cmath>

#include <gtest/gtest.h>

namespace dtopp {
namespace {

RoutingConfig with_gains(double kp, double ki, double target = 8) {
  RoutingConfig config;
  config.kp = {kp};
  config.ki = {ki};
  config.target_experts = {target};
  return config;
}

// Iterates the linearised closed loop itself: does an error die out?
bool settles(double kp, double ki, double gain) {
  double error_sum = 0;
  double deviation = 0.01;  // of p from its equilibrium
  for (int step = 0; step < 20000; ++step) {
    const double error = -gain * deviation;
    error_sum += error;
    deviation = 0.01 + kp * error + ki * error_sum;
    if (!(std::abs(deviation) < 1e6)) return false;
  }
  return std::abs(deviation) < 1e-6;
}

TEST(GainGuard, finds_the_papers_operating_point) {
  const PlantEstimate plant = estimate_plant(64, 8);
  EXPECT_NEAR(plant.threshold, 0.415, 0.01);
  EXPECT_NEAR(plant.active_std, 1.5, 0.15);
}

TEST(GainGuard, accepts_the_papers_gains_and_warns_of_unstable_ones) {
  EXPECT_FALSE(gain_warning(with_gains(0.1, 0.1), 64));
  const auto warning = gain_warning(with_gains(5, 5), 64);
  ASSERT_TRUE(warning);
  EXPECT_NE(warning->find("routing.kp"), std::string::npos);
  EXPECT_NE(warning->find("stable gains here"), std::string::npos);
  EXPECT_TRUE(gain_warning(with_gains(0.1, 0), 64));
}

// At one expert a token the count stays where it is for every p below the smallest largest probability.
TEST(GainGuard, has_nothing_to_say_of_stability_where_p_moves_no_count) {
  ASSERT_EQ(estimate_plant(8, 1).gain, 0);
  RoutingConfig config = with_gains(0.1, 0.1, 1);
  EXPECT_FALSE(gain_warning(config, 8));
  config.kp = config.ki = {.value = std::nullopt};
  EXPECT_FALSE(gain_warning(config, 8));
  const auto warning = gain_warning(with_gains(0.1, 0, 1), 8);
  ASSERT_TRUE(warning);
  EXPECT_EQ(warning->find("stable gains"), std::string::npos) << *warning;
}

TEST(GainGuard, its_bound_is_where_the_closed_loop_stops_settling) {
  const double gain = estimate_plant(64, 8).gain;
  for (const double share : {0.0, 0.3, 0.7}) {
    // On the line 2 kp + ki = limit, just inside and just outside.
    const double kp = share / gain;
    EXPECT_TRUE(settles(kp, (2 * 0.95 - 2 * share) / gain * 1.0, gain)) << share;
    EXPECT_FALSE(settles(kp, (2 * 1.05 - 2 * share) / gain * 1.0, gain)) << share;
  }
}

TEST(GainGuard, suggested_gains_are_stable) {
  for (const int64_t experts : {8, 16, 32, 64, 128}) {
    const auto warning = gain_warning(with_gains(50, 50, static_cast<double>(experts) / 4), experts);
    ASSERT_TRUE(warning);
    const double gain = std::stod(warning->substr(warning->rfind('=') + 1));
    EXPECT_FALSE(gain_warning(with_gains(gain, gain, static_cast<double>(experts) / 4), experts)) << *warning;
  }
}

}  // namespace
}  // namespace dtopp
