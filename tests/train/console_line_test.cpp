#include "dtopp/train/console_line.h"

#include <limits>

#include <gtest/gtest.h>

namespace dtopp::train {
namespace {

config::RunConfig config_of(config::RoutingMethod method) {
  config::RunConfig config;
  config.training.steps = 300;
  config.routing.method = method;
  config.routing.experts = {4};
  return config;
}

StepResult routed_step(int64_t layers, std::vector<double> thresholds) {
  StepResult result;
  result.loss = 5.1234;
  result.grad_norm = 0.837;
  result.lr = 2.9e-3;
  if (!thresholds.empty()) result.router = {{"threshold", std::move(thresholds)}};
  // 100 tokens per layer: 98 selected four experts, and two selected five.
  const at::Tensor counts_E = at::tensor({90, 100, 120, 92}, at::kLong);
  const at::Tensor histogram_N = at::tensor({0, 0, 0, 0, 98, 2}, at::kLong);
  result.activations = {counts_E.repeat({layers, 1}), histogram_N.repeat({layers, 1}),
                        at::zeros({2}, at::kLong), 100};
  return result;
}

const StepRates kRates{.tokens_per_second = 5120,
                       .seconds = 87,
                       .tflops = 0.5,
                       .seconds_left = 130,
                       .memory_bytes = 1'240'000'000,
                       .memory_peak_bytes = 1'300'000'000};

TEST(ConsoleLine, shows_the_step_its_losses_routing_and_speed) {
  EXPECT_EQ(console_line(config_of(config::RoutingMethod::kDTopP), 120, routed_step(2, {0.4123}), kRates),
            "step 120/300 | loss 5.123 | 5.12k tok/s | 1m27s, 2m10s left | experts 4.02/4 | p 0.412 | "
            "imbalance 1.2 | grad 0.84 | lr 2.9e-3 | 1.2 GB");
}

TEST(ConsoleLine, shows_nan_without_a_sign) {
  StepResult step = routed_step(2, {0.4123});
  step.loss = step.grad_norm = -std::numeric_limits<double>::quiet_NaN();
  const std::string line = console_line(config_of(config::RoutingMethod::kDTopP), 120, step, kRates);
  EXPECT_NE(line.find("loss nan"), std::string::npos) << line;
  EXPECT_NE(line.find("grad nan"), std::string::npos) << line;
  EXPECT_EQ(validation_line(120, nullptr, {{"accuracy", step.loss}}), "validation at step 120: accuracy nan");
}

// The rate measured at the start is too low if other work ran then, and MFU would exceed 100 %.
TEST(ConsoleLine, has_an_mfu_of_the_data_sheets_peak_alone) {
  StepRates rates = kRates;
  rates.mfu = 0.308;
  const auto line = console_line(config_of(config::RoutingMethod::kDTopP), 1, routed_step(1, {0.4}), rates);
  EXPECT_NE(line.find(" | MFU 31 % | "), std::string::npos) << line;
}

TEST(ConsoleLine, shows_the_range_of_thresholds_where_each_layer_has_its_own) {
  const auto line =
      console_line(config_of(config::RoutingMethod::kDTopP), 1, routed_step(3, {0.39, 0.44, 0.41}), kRates);
  EXPECT_NE(line.find(" | p 0.390-0.440 | "), std::string::npos) << line;
  const auto alike =
      console_line(config_of(config::RoutingMethod::kDTopP), 1, routed_step(2, {0.39, 0.3901}), kRates);
  EXPECT_NE(alike.find(" | p 0.390 | "), std::string::npos) << alike;
}

TEST(ConsoleLine, leaves_out_that_no_time_is_left) {
  StepRates rates = kRates;
  for (const double left : {0.0, 0.049}) {
    rates.seconds_left = left;
    const auto line = console_line(config_of(config::RoutingMethod::kTopK), 300, routed_step(2, {}), rates);
    EXPECT_NE(line.find(" tok/s | 1m27s | experts"), std::string::npos) << line;
  }
}

TEST(ConsoleLine, leaves_out_what_the_routing_lacks) {
  const auto top_k = console_line(config_of(config::RoutingMethod::kTopK), 1, routed_step(2, {}), kRates);
  EXPECT_NE(top_k.find(" | experts 4.02 | imbalance"), std::string::npos) << top_k;
  const auto top_p = console_line(config_of(config::RoutingMethod::kTopP), 1, routed_step(2, {0.25}), kRates);
  EXPECT_NE(top_p.find(" | experts 4.02 | p 0.250 | imbalance"), std::string::npos) << top_p;
  const auto dense = console_line(config_of(config::RoutingMethod::kTopK), 1, routed_step(0, {}), kRates);
  EXPECT_NE(dense.find(" left | grad 0.84 | lr 2.9e-3"), std::string::npos) << dense;
}

TEST(ConsoleLine, says_that_a_step_was_skipped) {
  StepResult result = routed_step(1, {0.4});
  result.skipped = true;
  const auto line = console_line(config_of(config::RoutingMethod::kDTopP), 1, result, kRates);
  EXPECT_NE(line.find(" | skipped | "), std::string::npos) << line;
}

TEST(RunLine, names_parameters_and_tokens) {
  config::RunConfig config = config_of(config::RoutingMethod::kDTopP);
  config.model.sequence_length = 256;
  config.training.global_batch_size = 4;
  plan::Plan plan;
  plan.parameters = 1'510'000;
  plan.active_parameters = 912'000;
  plan.tokens_per_step = 1024;
  EXPECT_EQ(run_line(config, plan, 300),
            "1.51M parameters, 912k active per token; 300 steps of 4 x 256 tokens: 307k tokens");
  plan.active_parameters = plan.parameters;
  EXPECT_EQ(run_line(config, plan, 300), "1.51M parameters; 300 steps of 4 x 256 tokens: 307k tokens");
}

TEST(ValidationLine, names_what_was_measured) {
  const models::ValidationResult routed{5.25, routed_step(2, {0.5}).activations};
  EXPECT_EQ(validation_line(300, &routed, {{"hellaswag/accuracy", 0.3125}, {"copa/accuracy", 0.5}}),
            "validation at step 300: loss 5.250000, active experts 4.020000, "
            "hellaswag/accuracy 0.312500, copa/accuracy 0.500000");
  models::ValidationResult dense;
  dense.loss = 5.25;
  EXPECT_EQ(validation_line(0, &dense, {}), "validation at step 0: loss 5.250000");
  EXPECT_EQ(validation_line(7, nullptr, {{"copa/accuracy", 0.5}}),
            "validation at step 7: copa/accuracy 0.500000");
}

TEST(ConsoleLine, names_the_micro_batch_to_use_when_memory_ends) {
  config::RunConfig config;
  const auto line = [&](int64_t size, std::optional<int64_t> planned) {
    config.training.micro_batch_size = size;
    return out_of_memory_line(config, planned);
  };
  EXPECT_EQ(line(8, 3),
            "out of memory with training.micro_batch_size=8: set training.recompute to layer, or lower "
            "training.micro_batch_size to 3");
  EXPECT_EQ(line(8, 8), line(8, 4));  // the plan was too low, so half of the size
  EXPECT_EQ(line(8, std::nullopt), line(8, 4));
  config.training.recompute = config::Recompute::kLayer;
  EXPECT_EQ(line(8, 3),
            "out of memory with training.micro_batch_size=8: lower training.micro_batch_size to 3");
  EXPECT_EQ(line(1, 1), "out of memory with training.micro_batch_size=1: make the model smaller");
}

}  // namespace
}  // namespace dtopp::train
