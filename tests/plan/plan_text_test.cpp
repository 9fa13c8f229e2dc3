#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtopp/plan/plan.h"
#include "tests/plan/tiny_run.h"

namespace dtopp::plan::plan_text_test {
namespace {

Plan made_up_plan() {
  Plan plan;
  plan.active_experts = 3;
  plan.parameters = 1'370'000'000;
  plan.active_parameters = 999;
  plan.flops_per_token = 8'220'000'000;
  plan.tokens_per_step = 48;
  plan.micro_batch_size = 3;
  plan.memory = {{"gradients", 1000}, {"workspace", 0}, {"program", 2'000'000'000}};
  return plan;
}

TEST(PlanTable, shows_figures_with_units_and_leaves_out_parts_of_nothing) {
  config::RunConfig config = tiny();
  config.name = "tiny";
  config.training.steps = 100;
  EXPECT_EQ(plan_table(made_up_plan(), config, {}),
            "tiny\n"
            "parameters                     1.370 G\n"
            "active parameters                  999   3 of 6 experts per token\n"
            "FLOPs per token                8.220 G   forward and backward\n"
            "tokens per step                     48\n"
            "total tokens                   4.800 K   100 steps\n"
            "total FLOPs                   39.456 T\n"
            "memory\n"
            "  gradients                     1.0 kB\n"
            "  program                       2.0 GB\n"
            "  total                         2.0 GB   micro-batch 3, fp32\n");
}

TEST(PlanTable, shows_the_snapshot_below_the_total) {
  Plan plan = made_up_plan();
  plan.snapshot_bytes = 3'000'000'000;
  EXPECT_THAT(plan_table(plan, tiny(), {}),
              ::testing::EndsWith("  total                         2.0 GB   micro-batch 3, fp32\n"
                                  "  checkpoint snapshot           3.0 GB   in addition, of the host: "
                                  "checkpoint.asynchronous\n"));
}

TEST(PlanTable, leaves_the_precision_open_if_the_training_processor_decides) {
  config::RunConfig config = tiny();
  config.training.precision = config::Precision::kAuto;
  const auto shown = [&](config::Device device) {
    return plan_table(make_plan(config, {}, device), config, {});
  };
  EXPECT_THAT(shown(config::Device::kCpu), ::testing::HasSubstr(", fp32 or bf16\n"));
  EXPECT_THAT(shown(config::Device::kCuda), ::testing::HasSubstr(", bf16\n"));
}

TEST(PlanTable, shows_whether_a_device_suffices) {
  const Plan plan = made_up_plan();
  EXPECT_THAT(plan_table(plan, tiny(), {device::PlanDevice{"cpu", plan.memory_bytes()}}),
              ::testing::EndsWith("cpu                             2.0 GB   fits\n"
                                  "largest micro-batch               none   that leaves 5 % free\n"));
  EXPECT_THAT(plan_table(plan, tiny(), {device::PlanDevice{"cpu", plan.memory_bytes() - 1}, {}, 4}),
              ::testing::EndsWith("   does not fit\n"
                                  "largest micro-batch                  4   that leaves 5 % free\n"));
}

Plan made_up_plan_of_ranks(int64_t expert_parallel, uint64_t memory) {
  Plan plan = made_up_plan();
  plan.dims = {8, 2, expert_parallel};
  plan.memory = {{"program", memory}};
  plan.communication.edp_gradients = {1e9, 2e9};
  plan.communication.step = {400, 0};
  plan.communication.rows_per_token = 1.5;
  return plan;
}

TEST(PlanTable, shows_bytes_by_collective_seconds_and_the_alternatives) {
  const Plan plan = made_up_plan_of_ranks(2, 50);
  device::DeviceRates rates;
  rates.fp32_flops = 1e12;
  rates.memory = 1e12;
  rates.inside = 1e9;
  rates.between = 1e9;
  const PlanContext context{device::PlanDevice{"toy", 70, rates}, {made_up_plan_of_ranks(1, 100), plan}};
  const std::string text = plan_table(plan, tiny(), context);
  for (const char* line :
       {"memory of each rank\n",
        "sent per step, mean rank  inside nodes   between nodes\n"
        "  reduce scatter                1.0 GB          2.0 GB\n"
        "  step                           400 B             0 B\n"
        "  total                         1.0 GB          2.0 GB\n"
        "rows per token                    1.50   ranks of 2 that hold its experts\n",
        "  compute                      0.110 s   assumed: 45 % of 1 TFLOP/s\n",
        "  update                       0.006 s   assumed for memory: 80 % of 1000 GB/s\n",
        "expert-parallel ranks           memory   between nodes          step\n"
        "  1                              100 B          2.0 GB       2.272 s\n"
        "  2                               50 B          2.0 GB       2.272 s\n"
        "recommended: parallel.expert_parallel=2: 50 B fit the 70 B of toy, the fewest ranks that "
        "do: 1 would need 100 B\n"})
    EXPECT_THAT(text, ::testing::HasSubstr(line));
}

TEST(PlanJson, holds_every_part_and_the_device_where_one_is_asked_for) {
  const Plan plan = made_up_plan();
  const auto json =
      nlohmann::json::parse(plan_json(plan, {device::PlanDevice{"cpu", plan.memory_bytes() - 1}}));
  EXPECT_EQ(json["memory_bytes"]["workspace"], 0);
  EXPECT_EQ(json["memory_bytes"]["total"], 2'000'001'000);
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["fits"], false);
  EXPECT_TRUE(json["largest_micro_batch"].is_null());
  EXPECT_TRUE(json["step_seconds"].is_null());
  EXPECT_FALSE(nlohmann::json::parse(plan_json(plan, {})).contains("fits"));
}

TEST(PlanJson, holds_bytes_by_collective_and_the_recommendation) {
  const Plan plan = made_up_plan_of_ranks(2, 50);
  const PlanContext context{device::find_device("h100"), {made_up_plan_of_ranks(1, 100), plan}};
  const auto json = nlohmann::json::parse(plan_json(plan, context));
  EXPECT_EQ(json["wire_bytes"]["reduce_scatter"]["between"], 2'000'000'000);
  EXPECT_EQ(json["wire_bytes"]["dispatch"]["inside"], 0);
  EXPECT_EQ(json["wire_bytes_per_step"], 3'000'000'400);
  EXPECT_EQ(json["alternatives"].size(), 2U);
  EXPECT_EQ(json["alternatives"][0]["memory_bytes"], 100);
  EXPECT_EQ(json["recommended"]["expert_parallel"], 1);
  double sum = 0;
  for (const auto& part : json["step_seconds_by_part"]) sum += part.get<double>();
  EXPECT_NEAR(json["step_seconds"].get<double>(), sum, 1e-12);
}

}  // namespace
}  // namespace dtopp::plan::plan_text_test
