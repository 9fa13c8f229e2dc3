// Tests the `routing` section of a run's configuration.
#include <map>

#include <gmock/gmock.h>

#include "dtopp/config/config.h"
#include "dtopp/config/run_config.h"
#include "tests/config/run_config_fixture.h"

namespace dtopp::config {
namespace {

using RoutingConfigTest = RunConfigTest;

TEST_F(RoutingConfigTest, impossible_values_name_the_key_and_the_bound) {
  const std::map<std::vector<std::string>, std::string> cases = {
      {{"routing.experts=65"}, "routing.experts: must lie in [1, 64] (model.num_experts), is 65.0"},
      {{"routing.experts=0.5"}, "routing.experts: must lie in [1, 64] (model.num_experts), is 0.5"},
      {{"routing.experts=[]"}, "routing.experts: is empty; give a number"},
      {{"routing.experts=[8, 8]"},
       "routing.experts: a list needs routing.scope: layer; one threshold has one target"},
      {{"routing.scope=layer", "routing.experts=[8, 8]"},
       "routing.experts: has 2 values for 16 layers (model.num_layers)"},
      {{"routing.method=top_k", "routing.experts=65"},
       "routing.experts: must lie in [1, 64] (model.num_experts), is 65.0"},
      {{"routing.method=top_k", "routing.experts=2.5"},
       "routing.experts: must be a whole number for top_k, is 2.5"},
      {{"routing.method=top_k", "routing.scope=layer", "routing.experts=[8, 8]"},
       "routing.experts: a list needs routing.method: dtop_p"},
      {{"routing.method=top_k", "routing.max_experts=4"},
       "routing.max_experts: 4 is below routing.experts 8.0"},
      {{"routing.method=hash"}, "routing.normalization: hash has no logits to normalize; set it to none"},
      {{"routing.method=hash", "routing.normalization=none"},
       "loss.load_balance: hash has no router to train; set it to 0 (or method=hash)"},
      {{"routing.schedule=[2, 8]"},
       "routing.schedule_at: must have as many values as routing.schedule, at least 2"},
      {{"routing.schedule=[2, 8]", "routing.schedule_at=[0, 0.9]"},
       "routing.schedule_at: must rise from 0.0 to 1.0, is [0.0, 0.9]"},
      {{"routing.schedule=[2, 3, 8]", "routing.schedule_at=[0, 0, 1]"},
       "routing.schedule_at: must rise from 0.0 to 1.0, is [0.0, 0.0, 1.0]"},
      {{"routing.schedule=[0, 8]", "routing.schedule_at=[0, 1]"},
       "routing.schedule: must lie in [1, 64] (model.num_experts), is 0.0"},
      {{"routing.schedule=[2, 6]", "routing.schedule_at=[0, 1]"},
       "routing.experts: is 8.0, but routing.schedule ends at 6.0; set both to the same"},
      {{"routing.schedule=[2, 8]", "routing.schedule_at=[0, 1]", "routing.method=top_k"},
       "routing.schedule_shape: must be step for top_k, whose number of experts is whole"},
      {{"routing.schedule=[2, 8]", "routing.schedule_at=[0, 1]", "routing.method=top_p"},
       "routing.schedule: top_p holds no budget; leave it out"},
      {{"routing.threshold=0"}, "routing.threshold: must lie between 0 and 1, both excluded, is 0.0"},
      {{"routing.threshold=1"}, "routing.threshold: must lie between 0 and 1, both excluded, is 1.0"},
      {{"routing.method=top_p", "routing.threshold=-0.25"},
       "routing.threshold: must lie between 0 and 1, both excluded, is -0.25"},
      {{"routing.max_experts=-1"},
       "routing.max_experts: must lie in [0, 64] (model.num_experts; 0: no cap), is -1"},
      {{"routing.max_experts=65"},
       "routing.max_experts: must lie in [0, 64] (model.num_experts; 0: no cap), is 65"},
      {{"routing.max_experts=4"}, "routing.max_experts: 4 is below routing.experts 8.0"},
      {{"routing.kp=-0.1"}, "routing.kp: must not be negative, is -0.1"},
      {{"routing.ki=-0.1"}, "routing.ki: must not be negative, is -0.1"},
      {{"model.num_experts=1", "model.zero_experts=1"},
       "model.zero_experts: a dense model has no router; set it to 0"},
      {{"model.zero_experts=8", "routing.method=top_k"},
       "model.zero_experts: need routing.method: top_k_bias or dtop_p; set it to 0"},
      {{"model.zero_experts=8", "routing.method=top_k_bias"},
       "routing.max_experts: is the number of experts that a token takes with top_k_bias, zero experts "
       "included; it must exceed routing.experts 8.0"},
      {{"model.zero_experts=8", "routing.experts=0"},
       "routing.experts: must lie in (0, 64] (model.num_experts), is 0.0"},
      {{"model.zero_experts=8", "routing.max_experts=73"},
       "routing.max_experts: must lie in [0, 72] (model.num_experts + zero_experts; 0: no cap), is 73"},
      {{"model.zero_kind=copy"}, "model.zero_kind: copy needs model.zero_experts"},
      {{"model.num_layers=4", "routing.hash_layers=4"},
       "routing.hash_layers: must lie in [0, 4) (model.num_layers), is 4"},
      {{"routing.hash_layers=1", "routing.experts=2.5"},
       "routing.hash_layers: needs routing.scope: global and a whole number of routing.experts; set it to 0"},
      {{"routing.hash_layers=1", "routing.scope=layer"},
       "routing.hash_layers: needs routing.scope: global and a whole number of routing.experts; set it to 0"},
      {{"routing.hash_layers=1", "model.zero_experts=8"},
       "routing.hash_layers: needs top_k, top_p or dtop_p, with or without bias, and no zero experts; set it "
       "to 0"},
      {{"routing.expert_normalization=running", "routing.normalization=none"},
       "routing.expert_normalization: needs routing.normalization: fixed or dynamic; set it to none"},
      {{"routing.bias_until=1.5"}, "routing.bias_until: must lie in [0, 1], is 1.5"},
      {{"routing.gate_scale=0"}, "routing.gate_scale: must be positive"},
      {{"routing.gate_scale=2.5"},
       "routing.gate_scale: needs routing.method: top_k_bias without zero experts; set it to 1"},
      {{"loss.sequence_balance=1e-4"},
       "loss.sequence_balance: needs routing.method: top_k_bias without zero experts; set it to 0"},
  };
  for (const auto& [overrides, message] : cases)
    EXPECT_THAT(error(overrides), ::testing::EndsWith(": " + message)) << overrides[0];
}

TEST_F(RoutingConfigTest, top_k_bias_scales_its_gates_and_balances_sequences) {
  EXPECT_EQ(error({"routing.method=top_k_bias", "routing.normalization=none", "routing.gate_scale=2.5",
                   "routing.bias_until=0.5", "loss.sequence_balance=1e-4"}),
            "no error");
}

TEST_F(RoutingConfigTest, a_schedule_moves_the_budget) {
  RoutingConfig routing;
  routing.experts = {6};
  routing.schedule = {2, 6, 6};
  routing.schedule_at = {0, 0.5, 1};
  EXPECT_EQ(mean_experts_at(routing, 0, 100), 2);
  EXPECT_EQ(mean_experts_at(routing, 25, 100), 4);
  EXPECT_EQ(mean_experts_at(routing, 50, 100), 6);
  EXPECT_EQ(mean_experts_at(routing, 100, 100), 6);
  EXPECT_EQ(mean_experts_of_run(routing), 5);
  EXPECT_EQ(most_experts_of_run(routing), 6);
  routing.experts = {3, 9};  // layers keep their proportion
  EXPECT_EQ(experts_at(routing, 25, 100), (std::vector<double>{2, 6}));
  routing.schedule_shape = ScheduleShape::kStep;
  EXPECT_EQ(mean_experts_at(routing, 49, 100), 2);
  EXPECT_EQ(mean_experts_at(routing, 50, 100), 6);
  EXPECT_EQ(mean_experts_of_run(routing), 4);
  EXPECT_EQ(mean_experts_at(RoutingConfig(), 3, 100), 8);
}

TEST_F(RoutingConfigTest, dense_models_ignore_routing) {
  EXPECT_EQ(error({"model.num_experts=1", "routing.experts=99", "routing.threshold=7"}), "no error");
}

TEST_F(RoutingConfigTest, methods_with_their_own_gates_refuse_what_they_do_not_use) {
  EXPECT_EQ(error({"routing.method=top_k_bias"}),
            "run.yaml: routing.normalization: must be none for top_k_bias");
  const std::vector<std::string> relu = {"routing.method=relu", "routing.normalization=none",
                                         "routing.renormalize=false", "loss.load_balance=0"};
  const auto with = [&](const std::string& override) {
    std::vector<std::string> overrides = relu;
    overrides.push_back(override);
    return error(overrides);
  };
  EXPECT_EQ(error(relu), "no error");
  EXPECT_THAT(with("routing.renormalize=true"),
              testing::HasSubstr("routing.renormalize: must be false for relu"));
  EXPECT_THAT(with("routing.max_experts=9"), testing::HasSubstr("routing.max_experts: must be 0 for relu"));
  EXPECT_THAT(with("loss.load_balance=0.1"), testing::HasSubstr("loss.load_balance: must be 0 for relu"));
  EXPECT_THAT(with("routing.experts=[1, 2]"), testing::HasSubstr("a list needs routing.method: dtop_p"));
  EXPECT_THAT(with("routing.lambda_0=0"), testing::HasSubstr("routing.lambda_0: must be positive"));
  EXPECT_THAT(with("routing.lambda_factor=1"), testing::HasSubstr("routing.lambda_factor: must be above 1"));
  EXPECT_EQ(with("routing.experts=2.5"), "no error");
  for (const std::vector<std::string>& others :
       {std::vector<std::string>{"routing.method=relu", "loss.load_balance=0"},
        {"routing.method=expert_threshold"},
        {"routing.method=top_k_bias", "routing.renormalize=true"},
        {"routing.method=hash", "routing.renormalize=true", "loss.load_balance=0", "loss.dynamic=0"}}) {
    std::vector<std::string> overrides = {"routing.normalization=none", "routing.renormalize=false"};
    overrides.insert(overrides.end(), others.begin(), others.end());
    EXPECT_EQ(error(overrides), "no error");
    overrides.push_back("routing.expert_normalization=running");
    EXPECT_THAT(error(overrides), testing::HasSubstr("routing.expert_normalization: needs"));
  }
  EXPECT_THAT(error({"routing.method=expert_threshold", "routing.normalization=none",
                     "routing.renormalize=false", "routing.cut_decay=1"}),
              testing::HasSubstr("routing.cut_decay: must lie in [0, 1), is 1"));
}

TEST_F(RoutingConfigTest, settings_of_other_methods_are_not_judged) {
  EXPECT_EQ(
      error({"routing.method=top_k", "routing.experts=2", "routing.threshold=7", "model.num_experts=4"}),
      "no error");
  EXPECT_EQ(error({"routing.method=top_p", "routing.experts=70"}), "no error");
}

TEST_F(RoutingConfigTest, takes_one_target_a_layer) {
  const RunConfig config =
      load({"model.num_layers=3", "routing.scope=layer", "routing.experts=[4, 8, 12.5]"});
  EXPECT_EQ(config.routing.experts.at(2), 12.5);
  EXPECT_EQ(load({}).routing.experts, std::vector<double>{8.0});
}

}  // namespace
}  // namespace dtopp::config
