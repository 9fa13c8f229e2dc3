#include "dtopp/optim/optimizer.h"

#include <gtest/gtest.h>

#include "dtopp/base/format.h"

namespace dtopp::optim {
namespace {

config::OptimizerConfig optimizer(config::Schedule schedule = config::Schedule::kCosine) {
  config::OptimizerConfig config;
  config.lr = 3e-3;
  config.min_lr = 3e-5;
  config.schedule = schedule;
  config.warmup_steps = 100;
  config.decay_steps = 200;
  return config;
}

TEST(Schedule, all_warm_up_linearly_from_zero) {
  for (const std::string_view name : config::enum_names(config::Schedule{})) {
    SCOPED_TRACE(name);
    const auto schedule = enum_named<config::Schedule>(name).value();
    EXPECT_DOUBLE_EQ(learning_rate(optimizer(schedule), 1, 1000), 3e-5);
    EXPECT_DOUBLE_EQ(learning_rate(optimizer(schedule), 50, 1000), 1.5e-3);
    EXPECT_DOUBLE_EQ(learning_rate(optimizer(schedule), 100, 1000), 3e-3);
  }
}

TEST(Schedule, cosine_falls_to_min_lr_at_the_last_step) {
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(), 550, 1000), (3e-3 + 3e-5) / 2);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(), 1000, 1000), 3e-5);
}

TEST(Schedule, cosine_works_without_warm_up) {
  config::OptimizerConfig config = optimizer();
  config.warmup_steps = 0;
  EXPECT_NEAR(learning_rate(config, 1, 1000), 3e-3, 1e-7);
  EXPECT_DOUBLE_EQ(learning_rate(config, 1000, 1000), 3e-5);
}

TEST(Schedule, linear_falls_along_a_line_from_the_end_of_warm_up) {
  const config::OptimizerConfig config = optimizer(config::Schedule::kLinear);
  EXPECT_DOUBLE_EQ(learning_rate(config, 400, 1000), 3e-3 - (3e-3 - 3e-5) / 3);
  EXPECT_DOUBLE_EQ(learning_rate(config, 550, 1000), (3e-3 + 3e-5) / 2);
  EXPECT_DOUBLE_EQ(learning_rate(config, 1000, 1000), 3e-5);
}

TEST(Schedule, constant_stays_at_the_peak) {
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(config::Schedule::kConstant), 101, 1000), 3e-3);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(config::Schedule::kConstant), 1000, 1000), 3e-3);
}

TEST(Schedule, wsd_stays_and_falls_along_a_line_in_the_last_steps) {
  const config::OptimizerConfig config = optimizer(config::Schedule::kWsd);
  EXPECT_EQ(learning_rate(config, 101, 1000), 3e-3);
  EXPECT_EQ(learning_rate(config, 800, 1000), 3e-3);
  EXPECT_DOUBLE_EQ(learning_rate(config, 801, 1000), 3e-3 - (3e-3 - 3e-5) / 200);
  EXPECT_DOUBLE_EQ(learning_rate(config, 900, 1000), (3e-3 + 3e-5) / 2);
  EXPECT_DOUBLE_EQ(learning_rate(config, 1000, 1000), 3e-5);
}

TEST(Schedule, wsd_is_constant_until_its_decay_to_the_bit) {
  for (int64_t step = 1; step <= 800; ++step)
    EXPECT_EQ(learning_rate(optimizer(config::Schedule::kWsd), step, 1000),
              learning_rate(optimizer(config::Schedule::kConstant), step, 5000));
}

TEST(Schedule, wsd_may_decay_from_the_end_of_warm_up) {
  config::OptimizerConfig config = optimizer(config::Schedule::kWsd);
  config.decay_steps = 900;
  for (const int64_t step : {99, 100, 101, 550, 1000})
    EXPECT_DOUBLE_EQ(learning_rate(config, step, 1000),
                     learning_rate(optimizer(config::Schedule::kLinear), step, 1000));
}

TEST(Schedule, gives_routers_their_own_factor_and_warm_up) {
  config::OptimizerConfig config = optimizer(config::Schedule::kConstant);
  config.router_lr_factor = 0.1;
  EXPECT_DOUBLE_EQ(learning_rates(config, 50, 1000).lr, 1.5e-3);
  EXPECT_DOUBLE_EQ(learning_rates(config, 50, 1000).router, 1.5e-4);
  config.router_warmup_steps = 400;
  EXPECT_DOUBLE_EQ(learning_rates(config, 200, 1000).lr, 3e-3);
  EXPECT_DOUBLE_EQ(learning_rates(config, 200, 1000).router, 1.5e-4);
  EXPECT_DOUBLE_EQ(learning_rates(config, 400, 1000).router, 3e-4);
  EXPECT_DOUBLE_EQ(learning_rates(config, 1000, 1000).router, 3e-4);
}

}  // namespace

}  // namespace dtopp::optim
