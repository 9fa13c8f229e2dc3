#include "dtopp/train/schedule.h"

#include <gtest/gtest.h>

namespace dtopp {
namespace {

OptimizerConfig optimizer() {
  OptimizerConfig config;
  config.lr = 3e-3;
  config.min_lr = 3e-5;
  config.warmup_steps = 100;
  return config;
}

TEST(Schedule, warms_up_linearly_from_zero) {
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(), 1, 1000), 3e-5);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(), 50, 1000), 1.5e-3);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(), 100, 1000), 3e-3);
}

TEST(Schedule, falls_along_a_cosine_to_min_lr_at_the_last_step) {
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(), 550, 1000), (3e-3 + 3e-5) / 2);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(), 1000, 1000), 3e-5);
}

TEST(Schedule, works_without_warm_up) {
  OptimizerConfig config = optimizer();
  config.warmup_steps = 0;
  EXPECT_NEAR(learning_rate(config, 1, 1000), 3e-3, 1e-7);
  EXPECT_DOUBLE_EQ(learning_rate(config, 1000, 1000), 3e-5);
}

}  // namespace
}  // namespace dtopp
