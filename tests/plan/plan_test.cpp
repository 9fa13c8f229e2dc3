#include "dtopp/plan/plan.h"

#include <cmath>

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "dtopp/plan/devices.h"
#include "tests/base/scratch_directory.h"
#include "tests/plan/tiny_run.h"

namespace dtopp {
namespace {

TEST(Plan, counts_what_can_be_counted_by_hand) {
  const Plan plan = make_plan(tiny());
  // A layer: attention 4 * 64, norms 4 * 8, router 6 * 8 + 1, experts 6 * 3 * 8 * 5.
  EXPECT_EQ(plan.parameters, 11U * 8 + 2 * (256 + 32 + 49 + 720) + 8);
  EXPECT_EQ(plan.active_parameters, 11U * 8 + 2 * (256 + 32 + 49 + 360) + 8);
  EXPECT_EQ(plan.flops_per_token, 6U * (2 * (256 + 48 + 360) + 88) + 6U * 2 * 8 * 4);
  EXPECT_EQ(plan.tokens_per_step, 48U);
}

TEST(Plan, an_untied_output_counts_as_parameters_but_a_look_up_costs_nothing) {
  RunConfig config = tiny();
  const Plan tied = make_plan(config);
  config.model.tie_embeddings = false;
  const Plan untied = make_plan(config);
  EXPECT_EQ(untied.parameters, tied.parameters + 88);
  EXPECT_EQ(untied.active_parameters, tied.active_parameters + 88);
  EXPECT_EQ(untied.flops_per_token, tied.flops_per_token);
}

TEST(Plan, an_rms_norm_keeps_what_it_normalised_on_a_cpu) {
  RunConfig config = tiny();
  const uint64_t layer_norm = make_plan(config).memory_bytes("activations");
  config.model.norm = NormType::kRms;
  // Two norms in each of two layers and the last one, of 12 tokens of 8 floats; in bf16 their inputs in fp32
  // too.
  EXPECT_EQ(make_plan(config).memory_bytes("activations"), layer_norm + 5 * 384);
  config.training.precision = Precision::kBf16;
  const uint64_t rms_norm = make_plan(config).memory_bytes("activations");
  config.model.norm = NormType::kLayer;
  EXPECT_EQ(rms_norm, make_plan(config).memory_bytes("activations") + 5 * 2 * 384);
}

TEST(Plan, counts_a_diffusion_transformer_by_hand) {
  RunConfig config = tiny();
  config.model.type = ModelType::kDiffusionTransformer;
  config.model.image_size = 8;
  config.model.channels = 3;
  config.model.patch_size = 4;
  config.model.num_classes = 5;
  config.model.text_length = 2;
  config.model.text_size = 7;
  const Plan plan = make_plan(config);
  // A block: attention 4 * 64, norms 2 * 8, table 6 * 8, router and experts as above.
  const uint64_t ends =
      48 * 8 + 8 + 7 * 8 + 8 + 6 * 8 + 2 * 8 + 8 * 48 + 48;  // patches, text, class, table, last
  const uint64_t once = 256 * 8 + 8 * 8 + 48 * 8 + 16 * 8;   // time, modulations
  EXPECT_EQ(plan.parameters, ends + once + 8 + 8 + 48 + 16 + 2 * (256 + 16 + 48 + 49 + 720));
  // 4 patches and 2 of text, each seeing all 6.
  const uint64_t of_a_token = 2 * (256 + 48 + 360) + 48 * 8 + 7 * 8 + 8 * 48;
  EXPECT_EQ(plan.flops_per_token, 6 * (of_a_token + once / 6) + 12U * 2 * 8 * 6);
  EXPECT_EQ(plan.tokens_per_step, 12U * 6);
  EXPECT_EQ(plan.memory_bytes("average"), 4 * plan.parameters);
  EXPECT_EQ(plan.memory_bytes("cross_entropy"), 0U);
  EXPECT_EQ(plan.memory_bytes("images"), 6U * 3 * 3 * 64 * 4);
  // A stream of 18 tokens of 8 floats has 576 bytes; 54 pairs.
  const uint64_t layer = 8 * 576 + 18 * 16 + 6 * 576 + 18 * 2 * 4 + 18 * 6 * 8 + 54 * 2 * 5 * 4;
  const uint64_t kept = 2 * layer + 4 * 576 + 3 * 3 * 64 * 4;
  const uint64_t arising = plan.memory_bytes("micro_batch_gradients") + plan.memory_bytes("workspace");
  EXPECT_EQ(plan.memory_bytes("activations"),
            kept - std::min(arising, static_cast<uint64_t>(std::llround(0.6 * static_cast<double>(kept)))));
}

TEST(LargestMicroBatch, is_the_largest_divisor_that_leaves_a_twentieth_free) {
  const RunConfig config = tiny();  // a global batch of 12
  const auto bytes_with = [&](int64_t size) {
    RunConfig other = config;
    other.training.micro_batch_size = size;
    return make_plan(other).memory_bytes();
  };
  const auto largest = [&](double memory) {
    return largest_micro_batch(config, {}, Device::kCpu, static_cast<uint64_t>(memory));
  };
  const auto six = static_cast<double>(bytes_with(6));
  ASSERT_LT(bytes_with(6), bytes_with(12));
  EXPECT_EQ(largest(six / 0.95 + 2), 6);
  EXPECT_EQ(largest(six / 0.95 - 2), 4);
  EXPECT_EQ(largest(1e12), 12);
  EXPECT_EQ(largest(1e6), std::nullopt);
}

TEST(LargestMicroBatch, leaves_every_rank_a_micro_batch) {
  EXPECT_EQ(largest_micro_batch(tiny(), {.ranks = 4}, Device::kCpu, uint64_t{1} << 40U), 3);
}

TEST(Plan, takes_active_experts_from_what_the_method_holds) {
  RunConfig config = tiny();
  config.routing.method = RoutingMethod::kTopK;
  config.routing.top_k = 2;
  EXPECT_EQ(make_plan(config).active_parameters, 11U * 8 + 2 * (256 + 32 + 49 + 240) + 8);
  config.routing.method = RoutingMethod::kDTopP;
  config.routing.scope = ThresholdScope::kLayer;
  config.routing.target_experts = {1.5, 3.5};
  EXPECT_EQ(make_plan(config).active_parameters, 11U * 8 + 2 * (256 + 32 + 49 + 300) + 8);
  config.model.num_experts = 1;
  EXPECT_EQ(make_plan(config).parameters, 11U * 8 + 2 * (256 + 32 + 120) + 8);
  EXPECT_EQ(make_plan(config).active_parameters, make_plan(config).parameters);
}

TEST(Plan, memory_in_fp32_by_hand) {
  const Plan plan = make_plan(tiny());
  const uint64_t P = plan.parameters;
  EXPECT_EQ(plan.memory_bytes("parameters"), 4 * P);
  EXPECT_EQ(plan.memory_bytes("optimizer_moments"), 8 * P);
  EXPECT_EQ(plan.memory_bytes("average"), 0U);
  EXPECT_EQ(plan.memory_bytes("gradients"), 2 * 4 * P);  // four micro-batches: two levels of sums
  EXPECT_EQ(plan.memory_bytes("compute_copies"), 0U);
  EXPECT_EQ(plan.memory_bytes("micro_batch_gradients"), 4U * 6 * 10 * 8);  // of gate and up
  // 12 tokens of 8 floats make a stream of 384 bytes; 36 pairs.
  const uint64_t layer = 4 * 384 + 12 * 16 + 6 * 384 + 12 * 2 * 4 + 12 * 6 * 8 + 36 * 2 * 5 * 4;
  const uint64_t kept = 2 * layer + 2 * 384 + 12 * 16;
  const uint64_t arising = plan.memory_bytes("micro_batch_gradients") + plan.memory_bytes("workspace");
  ASSERT_LT(arising, 0.6 * kept);
  EXPECT_EQ(plan.memory_bytes("activations"), kept - arising);
  EXPECT_EQ(plan.memory_bytes("cross_entropy"), 12U * 11 * 8 + 11 * 8 * 4 + 384);
  EXPECT_EQ(plan.memory_bytes("workspace"), 3U * 384 + 36 * 3 * 5 * 4 + 2 * 12 * 8 * 4 + 11 * 8 * 4);
  EXPECT_EQ(plan.memory_bytes("program"), 160U << 20);
  uint64_t total = 0;
  for (const MemoryPart& part : plan.memory) total += part.bytes;
  EXPECT_EQ(plan.memory_bytes(), total);
}

TEST(Plan, bf16_adds_copies_and_halves_activations) {
  RunConfig config = tiny();
  config.training.precision = Precision::kBf16;
  const Plan plan = make_plan(config);
  const uint64_t routers = 2 * 49;
  EXPECT_EQ(plan.memory_bytes("compute_copies"), 2 * (plan.parameters - routers));
  EXPECT_EQ(plan.memory_bytes("micro_batch_gradients"), 2U * 6 * 10 * 8);
  EXPECT_LT(plan.memory_bytes("activations"), make_plan(tiny()).memory_bytes("activations"));
  config.training.precision = Precision::kAuto;
  EXPECT_EQ(make_plan(config).memory_bytes(),
            std::max(plan.memory_bytes(), make_plan(tiny()).memory_bytes()));
}

TEST(Plan, gradients_take_over_no_more_than_they_need) {
  RunConfig config = tiny();
  config.model.sequence_length = 4096;  // activations far above the parameters
  config.training.micro_batch_size = config.training.global_batch_size;
  config.model.tie_embeddings = false;
  const uint64_t before = make_plan(config).memory_bytes("activations");
  config.model.vocab_size += 100;
  const Plan after = make_plan(config);
  const uint64_t more = 2 * 100 * 8 * 4;  // bytes of gradients: embedding and output
  EXPECT_EQ(before - after.memory_bytes("activations"), more);
}

TEST(Plan, one_micro_batch_needs_no_second_gradient) {
  RunConfig config = tiny();
  config.training.micro_batch_size = config.training.global_batch_size;
  EXPECT_EQ(make_plan(config).memory_bytes("micro_batch_gradients"), 0U);
}

TEST(Plan, sums_that_need_not_be_reproducible_are_one) {
  RunConfig config = tiny();
  config.parallel.reproducible = false;
  EXPECT_EQ(make_plan(config).memory_bytes("gradients"), 4 * make_plan(config).parameters);
}

TEST(Plan, ranks_share_masters_and_moments) {
  const Plan one = make_plan(tiny());
  const uint64_t P = one.parameters;
  ASSERT_EQ(P % 4, 2U);  // elements do not come out even
  const Plan four = make_plan(tiny(), {.ranks = 4});
  EXPECT_EQ(four.memory_bytes("parameters"), P);
  EXPECT_EQ(four.memory_bytes("optimizer_moments"), 2 * P);
  EXPECT_EQ(four.memory_bytes("gradients"), 4 * P);
  EXPECT_EQ(four.memory_bytes("compute_copies"), 4 * (P - P / 4));  // those of the others
  EXPECT_EQ(four.memory_bytes("exchange_buffers"), 2 * 4 * P);      // one bucket, sent and arriving
  EXPECT_EQ(one.memory_bytes("exchange_buffers"), 0U);
  RunConfig config = tiny(Precision::kBf16);
  EXPECT_EQ(make_plan(config, {.ranks = 4}).memory_bytes("compute_copies"),
            2 * (P - 2 * 49) + 4 * (2 * 49 - 2 * 49 / 4));  // routers are computed with in fp32
}

TEST(Plan, ranks_of_a_block_share_experts) {
  RunConfig config = tiny();
  config.training.global_batch_size = 24;  // eight micro-batches: two micro-steps of each block
  const RankLayout layout = {.ranks = 4, .nodes = 1, .expert_parallel = 2};
  const uint64_t dense = 88 + 2 * (256 + 32 + 49) + 8, experts = 2 * 720, held = dense + experts / 2;
  const Plan plan = make_plan(config, layout);
  EXPECT_EQ(plan.memory_bytes("parameters"), dense + experts);
  EXPECT_EQ(plan.memory_bytes("compute_copies"), 4 * (held - (dense + experts) / 4));
  EXPECT_EQ(plan.memory_bytes("gradients"), 4 * (dense + experts) / 2);
  EXPECT_EQ(plan.memory_bytes("micro_batch_gradients"), 4U * 6 * 10 * 8);  // of gate and up, by rank
  // Each of 12 tokens has 1.9 ranks on average. Kept of two layers: x and the gates of three experts; on
  // their way one layer's rows, in and out.
  EXPECT_NEAR(static_cast<double>(plan.memory_bytes("exchange_buffers") - 2 * 4 * held),
              12 * 1.9 * (2 * (8 * 4 + 3 * 4) + 2 * 8 * 4), 0.5);
  config.parallel.reproducible = false;
  EXPECT_EQ(make_plan(config, layout).memory_bytes("gradients"), 4 * held);
  EXPECT_EQ(make_plan(config, layout).memory_bytes("micro_batch_gradients"), 4U * 3 * 10 * 8);
}

TEST(Plan, tasks_want_the_whole_model_on_a_rank_that_holds_a_part_of_it) {
  RunConfig config = tiny();
  config.model.ffn_hidden_size = 4096;  // a model of more than its activations
  config.validation.tasks = {"copa"};
  const RankLayout layout = {.ranks = 4, .nodes = 1, .expert_parallel = 2};
  const Plan plan = make_plan(config, layout);
  EXPECT_EQ(plan.memory_bytes("task_model"), 4 * plan.parameters - plan.memory_bytes("gradients") -
                                                 plan.memory_bytes("micro_batch_gradients") -
                                                 plan.memory_bytes("activations"));
  EXPECT_THAT(error_of<ResourceError>([&] { require_memory(plan, plan.memory_bytes() - 1); }),
              ::testing::HasSubstr("set validation.tasks to [], or "));
  for (const RankLayout& other : {RankLayout{.ranks = 4}, RankLayout{}})  // where gradients take as much
    EXPECT_EQ(make_plan(config, other).memory_bytes("task_model"), 0U) << other.ranks;
  config.validation.tasks.clear();
  EXPECT_EQ(make_plan(config, layout).memory_bytes("task_model"), 0U);
}

TEST(Plan, more_ranks_than_micro_batches_are_refused) {
  EXPECT_NO_THROW(make_plan(tiny(), {.ranks = 4}));
  EXPECT_THROW(make_plan(tiny(), {.ranks = 5}), UsageError);
}

TEST(Plan, refuses_sizes_that_cannot_be_counted) {
  RunConfig config = tiny();
  config.model.hidden_size = 1 << 20;
  config.model.num_layers = 1 << 14;
  config.model.num_experts = 1 << 16;
  config.model.ffn_hidden_size = 1 << 24;
  EXPECT_THROW(make_plan(config), UsageError);
}

TEST(RequireMemory, names_a_micro_batch_that_fits_or_a_smaller_model) {
  RunConfig config = tiny();
  config.parallel.reproducible = false;
  const uint64_t needed = make_plan(config).memory_bytes();
  EXPECT_NO_THROW(require_memory(make_plan(config), needed));
  try {
    require_memory(make_plan(config), needed - 1);
    FAIL() << "no error";
  } catch (const ResourceError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kResource);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("lower training.micro_batch_size from 3 to 2 or less"));
  }
  config.training.micro_batch_size = 2;
  EXPECT_NO_THROW(require_memory(make_plan(config), needed - 1));
  try {
    require_memory(make_plan(config), 1000);
    FAIL() << "no error";
  } catch (const ResourceError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("1.0 kB are available: make the model smaller"));
  }
}

TEST(RequireMemory, names_the_sums_that_need_not_be) {
  try {
    require_memory(make_plan(tiny()), 1000);
    FAIL() << "no error";
  } catch (const ResourceError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("set parallel.reproducible to false"));
  }
}

TEST(FindDevice, knows_its_devices) {
  EXPECT_GT(find_device("h200").memory_bytes, find_device("h100").memory_bytes);
  EXPECT_TRUE(find_device("a100").rates);
  EXPECT_GT(find_device("cpu").memory_bytes, 0U);
  EXPECT_FALSE(find_device("cpu").rates);
  EXPECT_THROW(find_device("tpu"), UsageError);
}

RC_GTEST_PROP(PlanProperty, more_of_anything_never_costs_less, ()) {
  RunConfig config = tiny();
  config.model.num_experts = *rc::gen::inRange<int64_t>(2, 40);
  config.routing.target_experts = {
      static_cast<double>(*rc::gen::inRange<int64_t>(1, config.model.num_experts))};
  config.training.precision = *rc::gen::element(Precision::kFp32, Precision::kBf16);
  config.parallel.reproducible = false;  // else larger micro-batches, being fewer, may need one sum less
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
      config.routing.target_experts[0] += 1;
  }
  const Plan after = make_plan(config);
  RC_ASSERT(after.parameters >= before.parameters);
  RC_ASSERT(after.active_parameters >= before.active_parameters);
  RC_ASSERT(after.flops_per_token >= before.flops_per_token);
  RC_ASSERT(after.memory_bytes() > before.memory_bytes());
}

}  // namespace
}  // namespace dtopp
