#include <gtest/gtest.h>

#include "dtopp/plan/plan.h"

namespace dtopp::plan::step_time_test {
namespace {

// 45 of 100 FLOP/s remain for matrix products.
constexpr device::DeviceRates kRates = {
    .bf16_flops = 200, .fp32_flops = 100, .memory = 1 / 0.8, .inside = 1 / 0.67, .between = 1 / 0.9};

Plan made_up_plan() {
  Plan plan;
  plan.parameters = 4;
  plan.flops_per_token = 45;
  plan.tokens_per_step = 120;
  plan.dims = {4, 2, 2};
  plan.precision = config::Precision::kFp32;
  return plan;
}

TEST(StepTime, is_arithmetic_and_update_where_all_that_travels_is_hidden) {
  Plan plan = made_up_plan();
  plan.communication.edp_gradients = {18, 18};  // 0.9 of 20 s
  plan.communication.parameters = {9, 9};       // 0.9 of 10 s
  const StepTime time = plan_step_time(plan, kRates);
  EXPECT_DOUBLE_EQ(time.compute, 30);  // 30 tokens per rank
  EXPECT_NEAR(time.gradients, 0, 1e-12);
  EXPECT_NEAR(time.parameters, 0, 1e-12);
  EXPECT_DOUBLE_EQ(time.update, 30);  // the bytes of one parameter
  EXPECT_NEAR(time.mfu, 30 * 45 / (100 * 60.0), 1e-12);
  plan.precision = config::Precision::kBf16;
  EXPECT_DOUBLE_EQ(plan_step_time(plan, kRates).compute, 15);
}

TEST(StepTime, shows_what_is_not_hidden) {
  Plan plan = made_up_plan();
  plan.communication.micro_steps = 2;  // 10 s, of which the last micro-step takes 5 s
  plan.communication.ep_gradients = {19, 0};
  plan.communication.edp_gradients = {2, 12};
  plan.communication.parameters = {6, 5};
  plan.communication.dispatch = {3, 0};
  plan.communication.combine = {4, 0};
  const StepTime time = plan_step_time(plan, kRates);
  EXPECT_NEAR(time.gradients, (19 - 18) + (12 - 9), 1e-12);
  EXPECT_NEAR(time.parameters, 6 - 4.5, 1e-12);
  EXPECT_NEAR(time.rows, 7, 1e-12);
  EXPECT_DOUBLE_EQ(time.seconds(), time.compute + time.rows + time.gradients + time.parameters + time.update);
}

TEST(StepTime, waits_for_the_busiest_rank) {
  Plan plan = made_up_plan();
  plan.communication.busiest_share = 1.5;
  plan.communication.dispatch = {2, 0};
  const StepTime time = plan_step_time(plan, kRates);
  EXPECT_DOUBLE_EQ(time.compute, 45);
  EXPECT_NEAR(time.rows, 3, 1e-12);
  EXPECT_NEAR(time.mfu, 30 * 45 / (100 * (45 + 3 + 30.0)), 1e-12);
}

}  // namespace
}  // namespace dtopp::plan::step_time_test
