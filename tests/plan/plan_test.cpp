#include "dtopp/plan/plan.h"

#include <cmath>

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/device/known_devices.h"
#include "tests/plan/tiny_run.h"

namespace dtopp::plan {
namespace {

TEST(Plan, counts_what_can_be_counted_by_hand) {
  const Plan plan = make_plan(tiny());
  // Per layer: attention 4 * 64, norms 4 * 8, router 6 * 8 + 1, experts 6 * 3 * 8 * 5.
  EXPECT_EQ(plan.parameters, 11U * 8 + 2 * (256 + 32 + 49 + 720) + 8);
  EXPECT_EQ(plan.active_parameters, 11U * 8 + 2 * (256 + 32 + 49 + 360) + 8);
  EXPECT_EQ(plan.flops_per_token, 6U * (2 * (256 + 48 + 360) + 88) + 6U * 2 * 8 * 4);
  EXPECT_EQ(plan.tokens_per_step, 48U);
}

TEST(Plan, shared_experts_cost_every_token_their_ffn) {
  config::RunConfig config = tiny();
  const Plan without = make_plan(config);
  config.model.shared_experts = 2;
  const Plan plan = make_plan(config);
  constexpr uint64_t kShared = 2 * (2 * 3 * 8 * 5);  // in both layers
  EXPECT_EQ(plan.parameters, without.parameters + kShared);
  EXPECT_EQ(plan.active_parameters, without.active_parameters + kShared);
  EXPECT_EQ(plan.flops_per_token, without.flops_per_token + 6 * kShared);
}

TEST(Plan, a_shared_gate_costs_a_row_and_the_output_that_it_stores) {
  config::RunConfig config = tiny();
  config.model.shared_experts = 2;
  const Plan without = make_plan(config);
  config.model.shared_gate = true;
  const Plan plan = make_plan(config);
  EXPECT_EQ(plan.parameters, without.parameters + 2 * 8);
  EXPECT_EQ(plan.flops_per_token, without.flops_per_token + 6U * 2 * 8);
  EXPECT_GT(plan.memory_bytes(), without.memory_bytes());
}

TEST(Plan, norms_of_heads_and_biases_of_projections_are_counted) {
  config::RunConfig config = tiny();
  config.model.chosen_kv_heads = 1;
  const auto parameters = [&](config::QkNorm norm, bool bias) {
    config.model.qk_norm = norm;
    config.model.qkv_bias = bias;
    return make_plan(config).parameters;
  };
  const uint64_t K = config.model.head_size(), H = config.model.num_heads;
  const uint64_t none = parameters(config::QkNorm::kNone, false);
  EXPECT_EQ(parameters(config::QkNorm::kWhole, false), none + 2 * (H + 1) * K);  // in both layers
  EXPECT_EQ(parameters(config::QkNorm::kHead, false), none + 2 * 2 * K);
  EXPECT_EQ(parameters(config::QkNorm::kNone, true), none + 2 * (H + 2) * K);
}

TEST(Plan, without_qk_norm_no_input_of_it_is_stored) {
  config::RunConfig config = tiny();
  const uint64_t with = make_plan(config).memory_bytes();
  config.model.qk_norm = config::QkNorm::kNone;
  EXPECT_LT(make_plan(config).memory_bytes(), with);
}

TEST(Plan, zero_experts_cost_their_rows_of_the_router) {
  config::RunConfig config = tiny();
  const Plan without = make_plan(config);
  config.model.zero_experts = 3;
  const Plan plan = make_plan(config);
  EXPECT_EQ(plan.parameters, without.parameters + 2 * 3 * 8);
  EXPECT_EQ(plan.flops_per_token, without.flops_per_token + 6U * 2 * 3 * 8);
  config.routing.experts = {0.5};
  EXPECT_EQ(make_plan(config).active_experts, 0.5);
}

TEST(Plan, a_schedule_costs_its_mean_and_needs_the_memory_of_its_maximum) {
  config::RunConfig config = tiny();
  config.routing.experts = {2};
  config.routing.schedule = {5, 1, 2};
  config.routing.schedule_at = {0, 0.5, 1};
  const Plan plan = make_plan(config);
  config.routing.schedule.clear();
  config.routing.experts = {2.25};
  EXPECT_EQ(plan.flops_per_token, make_plan(config).flops_per_token);
  config.routing.experts = {5};
  EXPECT_EQ(plan.memory_bytes(), make_plan(config).memory_bytes());
}

TEST(Plan, hash_has_no_router) {
  config::RunConfig config = tiny();
  config.routing.method = config::RoutingMethod::kHash;
  EXPECT_EQ(make_plan(config).parameters, 11U * 8 + 2 * (256 + 32 + 720) + 8);
  EXPECT_EQ(make_plan(config).flops_per_token, 6U * (2 * (256 + 360) + 88) + 6U * 2 * 8 * 4);
}

TEST(Plan, an_untied_output_counts_as_parameters_but_a_look_up_costs_nothing) {
  config::RunConfig config = tiny();
  const Plan tied = make_plan(config);
  config.model.tie_embeddings = false;
  const Plan untied = make_plan(config);
  EXPECT_EQ(untied.parameters, tied.parameters + 88);
  EXPECT_EQ(untied.active_parameters, tied.active_parameters + 88);
  EXPECT_EQ(untied.flops_per_token, tied.flops_per_token);
}

TEST(Plan, every_norm_stores_the_same) {
  for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16}) {
    config::RunConfig config = tiny();
    config.training.precision = precision;
    const uint64_t layer_norm = make_plan(config).memory_bytes("activations");
    config.model.norm = config::NormType::kRms;
    EXPECT_EQ(make_plan(config).memory_bytes("activations"), layer_norm);
  }
}

TEST(Plan, counts_a_diffusion_transformer_by_hand) {
  config::RunConfig config = tiny();
  config.model.type = config::ModelType::kDiffusionTransformer;
  config.model.image_size = 8;
  config.model.channels = 3;
  config.model.patch_size = 4;
  config.model.num_classes = 5;
  config.model.text_length = 2;
  config.model.text_size = 7;
  const Plan plan = make_plan(config);
  // Per block: attention 4 * 64, norms 2 * 8, table 6 * 8, router and experts as above.
  const uint64_t ends =
      48 * 8 + 8 + 7 * 8 + 8 + 6 * 8 + 2 * 8 + 8 * 48 + 48;  // patches, text, class, table, last
  const uint64_t once = 256 * 8 + 8 * 8 + 48 * 8 + 16 * 8;   // time, modulations
  EXPECT_EQ(plan.parameters, ends + once + 8 + 8 + 48 + 16 + 2 * (256 + 16 + 48 + 49 + 720));
  // 4 patch tokens and 2 text tokens; each attends to all 6.
  const uint64_t of_a_token = 2 * (256 + 48 + 360) + 48 * 8 + 7 * 8 + 8 * 48;
  EXPECT_EQ(plan.flops_per_token, 6 * (of_a_token + once / 6) + 12U * 2 * 8 * 6);
  EXPECT_EQ(plan.tokens_per_step, 12U * 6);
  EXPECT_EQ(plan.memory_bytes("average"), 4 * plan.parameters);
  EXPECT_EQ(plan.memory_bytes("cross_entropy"), 0U);
  EXPECT_EQ(plan.memory_bytes("images"), 6U * 3 * 3 * 64 * 4);
  // 18 tokens of 8 floats make a stream of 576 bytes. There are 54 token-expert pairs.
  const uint64_t layer = 6 * 576 + 6 * 576 + 18 * 2 * 4 + 18 * 6 * 8 + 54 * 2 * 5 * 4;
  const uint64_t kept = 2 * layer + 3 * 576 + 3 * 3 * 64 * 4;
  const uint64_t arising = plan.memory_bytes("micro_batch_gradients") + plan.memory_bytes("workspace");
  EXPECT_EQ(plan.memory_bytes("activations"),
            kept - std::min(arising, static_cast<uint64_t>(std::llround(0.6 * static_cast<double>(kept)))));
}

TEST(Plan, takes_active_experts_from_what_the_method_holds) {
  config::RunConfig config = tiny();
  config.routing.method = config::RoutingMethod::kTopK;
  config.routing.experts = {2};
  EXPECT_EQ(make_plan(config).active_parameters, 11U * 8 + 2 * (256 + 32 + 49 + 240) + 8);
  config.routing.method = config::RoutingMethod::kDTopP;
  config.routing.scope = config::ThresholdScope::kLayer;
  config.routing.experts = {1.5, 3.5};
  EXPECT_EQ(make_plan(config).active_parameters, 11U * 8 + 2 * (256 + 32 + 49 + 300) + 8);
  config.model.num_experts = 1;
  EXPECT_EQ(make_plan(config).parameters, 11U * 8 + 2 * (256 + 32 + 120) + 8);
  EXPECT_EQ(make_plan(config).active_parameters, make_plan(config).parameters);
}

TEST(Plan, relu_needs_the_memory_of_all_experts) {
  config::RunConfig relu = tiny(), all = tiny();
  relu.routing.method = config::RoutingMethod::kRelu;
  relu.routing.experts = {2};
  all.routing.method = config::RoutingMethod::kTopK;
  all.routing.experts = {static_cast<double>(all.model.num_experts)};
  EXPECT_EQ(make_plan(relu).memory_bytes("activations"), make_plan(all).memory_bytes("activations"));
  all.routing.experts = {2};
  EXPECT_EQ(make_plan(relu).flops_per_token, make_plan(all).flops_per_token);
}

TEST(Plan, more_ranks_than_micro_batches_are_refused) {
  EXPECT_NO_THROW(make_plan(tiny(), {.world_size = 4}));
  EXPECT_THROW(make_plan(tiny(), {.world_size = 5}), UsageError);
}

TEST(Plan, refuses_sizes_that_cannot_be_counted) {
  config::RunConfig config = tiny();
  config.model.hidden_size = 1 << 20;
  config.model.num_layers = 1 << 14;
  config.model.num_experts = 1 << 16;
  config.model.ffn_hidden_size = 1 << 24;
  EXPECT_THROW(make_plan(config), UsageError);
}

TEST(FindDevice, knows_its_devices) {
  EXPECT_GT(device::find_device("h200").memory_bytes, device::find_device("h100").memory_bytes);
  EXPECT_TRUE(device::find_device("a100").rates);
  EXPECT_GT(device::find_device("cpu").memory_bytes, 0U);
  EXPECT_FALSE(device::find_device("cpu").rates);
  EXPECT_THROW(device::find_device("tpu"), UsageError);
}

RC_GTEST_PROP(PlanProperty, more_of_anything_never_costs_less, ()) {
  config::RunConfig config = tiny();
  config.model.num_experts = *rc::gen::inRange<int64_t>(2, 40);
  config.routing.experts = {static_cast<double>(*rc::gen::inRange<int64_t>(1, config.model.num_experts))};
  config.training.precision = *rc::gen::element(config::Precision::kFp32, config::Precision::kBf16);
  config.parallel.reproducible = false;  // otherwise fewer, larger micro-batches may need one sum less
  const Plan before = make_plan(config);
  switch (*rc::gen::inRange(0, 6)) {
    case 0:
      config.model.hidden_size *= 2;
      break;
    case 1:
      config.model.num_layers += 1;
      break;
    case 2:
      config.model.ffn_hidden_size += 1;
      break;
    case 3:
      config.model.sequence_length += 1;
      break;
    case 4:
      config.training.micro_batch_size *= 2;
      break;
    default:
      config.routing.experts[0] += 1;
  }
  const Plan after = make_plan(config);
  RC_ASSERT(after.parameters >= before.parameters);
  RC_ASSERT(after.active_parameters >= before.active_parameters);
  RC_ASSERT(after.flops_per_token >= before.flops_per_token);
  RC_ASSERT(after.memory_bytes() > before.memory_bytes());
}

}  // namespace
}  // namespace dtopp::plan
