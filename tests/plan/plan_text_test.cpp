#include "dtopp/plan/plan_text.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/plan/tiny_run.h"

namespace dtopp::plan_text_test {
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
  RunConfig config = tiny();
  config.name = "tiny";
  config.training.steps = 100;
  EXPECT_EQ(plan_table(made_up_plan(), config, std::nullopt),
            "tiny\n"
            "parameters                     1.370 G\n"
            "active parameters                  999   3 of 6 experts a token\n"
            "FLOPs a token                  8.220 G   forward and backward\n"
            "tokens a step                       48\n"
            "tokens in all                  4.800 K   100 steps\n"
            "FLOPs in all                  39.456 T\n"
            "memory\n"
            "  gradients                     1.0 kB\n"
            "  program                       2.0 GB\n"
            "  total                         2.0 GB   micro-batch 3, fp32\n");
}

TEST(PlanTable, shows_ranks_and_whether_a_device_suffices) {
  Plan plan = made_up_plan();
  plan.ranks = 4;
  plan.wire_bytes_per_step = 5000;
  const std::string fits = plan_table(plan, tiny(), PlanDevice{"h100", plan.memory_bytes()});
  EXPECT_NE(fits.find("memory of each rank\n"), fits.npos) << fits;
  EXPECT_TRUE(
      fits.ends_with("sent a step                     5.0 kB   by each rank\n"
                     "h100                            2.0 GB   fits\n"))
      << fits;
  const std::string small = plan_table(plan, tiny(), PlanDevice{"h100", plan.memory_bytes() - 1});
  EXPECT_TRUE(small.ends_with("   does not fit\n")) << small;
}

TEST(PlanJson, holds_every_part_and_the_device_where_one_is_asked_for) {
  const Plan plan = made_up_plan();
  const auto json = nlohmann::json::parse(plan_json(plan, PlanDevice{"cpu", plan.memory_bytes() - 1}));
  EXPECT_EQ(json["memory_bytes"]["workspace"], 0);
  EXPECT_EQ(json["memory_bytes"]["total"], 2'000'001'000);
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["fits"], false);
  EXPECT_FALSE(nlohmann::json::parse(plan_json(plan, std::nullopt)).contains("fits"));
}

}  // namespace
}  // namespace dtopp::plan_text_test
