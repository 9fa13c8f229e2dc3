// Tests a plan's figures for a rank's memory, and the advice derived from them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/plan/plan.h"
#include "tests/base/scratch_directory.h"
#include "tests/plan/tiny_run.h"

namespace dtopp::plan {
namespace {

std::string lack_of_memory(const config::RunConfig& config, const Plan& plan, uint64_t available) {
  return error_of<ResourceError>([&] { require_memory(config, plan, config::Device::kCpu, available); });
}

TEST(LargestMicroBatch, is_the_largest_divisor_that_leaves_a_twentieth_free) {
  const config::RunConfig config = tiny();  // a global batch of 12
  const auto bytes_with = [&](int64_t size) {
    config::RunConfig other = config;
    other.training.micro_batch_size = size;
    return make_plan(other).memory_bytes();
  };
  const auto largest = [&](double memory) {
    return largest_micro_batch(config, {}, config::Device::kCpu, static_cast<uint64_t>(memory));
  };
  const auto six = static_cast<double>(bytes_with(6));
  ASSERT_LT(bytes_with(6), bytes_with(12));
  EXPECT_EQ(largest(six / 0.95 + 2), 6);
  EXPECT_EQ(largest(six / 0.95 - 2), 4);
  EXPECT_EQ(largest(1e12), 12);
  EXPECT_EQ(largest(1e6), std::nullopt);
}

TEST(LargestMicroBatch, leaves_every_rank_a_micro_batch) {
  EXPECT_EQ(largest_micro_batch(tiny(), {.world_size = 4}, config::Device::kCpu, uint64_t{1} << 40U), 3);
}

TEST(Plan, memory_in_fp32_by_hand) {
  const Plan plan = make_plan(tiny());
  const uint64_t P = plan.parameters;
  EXPECT_EQ(plan.memory_bytes("parameters"), 4 * P);
  EXPECT_EQ(plan.memory_bytes("optimizer_moments"), 8 * P);
  EXPECT_EQ(plan.memory_bytes("average"), 0U);
  EXPECT_EQ(plan.memory_bytes("gradients"), 2 * 4 * P);  // four micro-batches: two levels of sums
  EXPECT_EQ(plan.memory_bytes("compute_copies"), 0U);
  EXPECT_EQ(plan.memory_bytes("micro_batch_gradients"), 4U * 6 * 10 * 8);  // for gate and up
  // 12 tokens of 8 floats make a stream of 384 bytes. There are 36 token-expert pairs.
  const uint64_t layer = 4 * 384 + 6 * 384 + 12 * 2 * 4 + 12 * 6 * 8 + 36 * 2 * 5 * 4;
  const uint64_t kept = 2 * layer + 2 * 384 + 12 * 16;
  const uint64_t arising = plan.memory_bytes("micro_batch_gradients") + plan.memory_bytes("workspace");
  ASSERT_LT(arising, 0.6 * kept);
  EXPECT_EQ(plan.memory_bytes("activations"), kept - arising);
  EXPECT_EQ(plan.memory_bytes("cross_entropy"), 12U * 11 * 8 + 11 * 8 * 4 + 384);
  EXPECT_EQ(plan.memory_bytes("workspace"), 3U * 384 + 36 * 3 * 5 * 4 + 2 * 12 * 8 * 4 + 11 * 8 * 4);
  EXPECT_EQ(plan.memory_bytes("program"), 160U << 20);
  uint64_t total = 0;
  for (const models::MemoryPart& part : plan.memory) total += part.bytes;
  EXPECT_EQ(plan.memory_bytes(), total);
}

TEST(Plan, bf16_adds_copies_and_halves_activations) {
  config::RunConfig config = tiny();
  config.training.precision = config::Precision::kBf16;
  const Plan plan = make_plan(config);
  const uint64_t routers = 2 * 49;
  EXPECT_EQ(plan.memory_bytes("compute_copies"), 2 * (plan.parameters - routers));
  EXPECT_EQ(plan.memory_bytes("micro_batch_gradients"), 2U * 6 * 10 * 8);
  EXPECT_LT(plan.memory_bytes("activations"), make_plan(tiny()).memory_bytes("activations"));
  config.training.precision = config::Precision::kAuto;
  EXPECT_EQ(make_plan(config).memory_bytes(),
            std::max(plan.memory_bytes(), make_plan(tiny()).memory_bytes()));
}

TEST(Plan, gradients_take_over_no_more_than_they_need) {
  config::RunConfig config = tiny();
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
  config::RunConfig config = tiny();
  config.training.micro_batch_size = config.training.global_batch_size;
  EXPECT_EQ(make_plan(config).memory_bytes("micro_batch_gradients"), 0U);
}

TEST(Plan, sums_that_need_not_be_reproducible_are_one) {
  config::RunConfig config = tiny();
  config.parallel.reproducible = false;
  EXPECT_EQ(make_plan(config).memory_bytes("gradients"), 4 * make_plan(config).parameters);
}

TEST(Plan, ranks_share_masters_and_moments) {
  const Plan one = make_plan(tiny());
  const uint64_t P = one.parameters;
  ASSERT_EQ(P % 4, 2U);  // P is not a multiple of four
  const Plan four = make_plan(tiny(), {.world_size = 4});
  EXPECT_EQ(four.memory_bytes("parameters"), P);
  EXPECT_EQ(four.memory_bytes("optimizer_moments"), 2 * P);
  EXPECT_EQ(four.memory_bytes("gradients"), 4 * P);
  EXPECT_EQ(four.memory_bytes("compute_copies"), 4 * (P - P / 4));  // the shards of the other ranks
  EXPECT_EQ(four.memory_bytes("exchange_buffers"), 2 * 4 * P);      // one bucket being sent, one arriving
  EXPECT_EQ(one.memory_bytes("exchange_buffers"), 0U);
  config::RunConfig config = tiny(config::Precision::kBf16);
  EXPECT_EQ(make_plan(config, {.world_size = 4}).memory_bytes("compute_copies"),
            2 * (P - 2 * 49) + 4 * (2 * 49 - 2 * 49 / 4));  // routers compute in fp32
}

TEST(Plan, a_snapshot_holds_what_a_rank_stores) {
  config::RunConfig config = tiny();
  const Plan plan = make_plan(config);
  EXPECT_EQ(plan.snapshot_bytes, 12 * plan.parameters);
  EXPECT_EQ(make_plan(config, {.world_size = 4}).snapshot_bytes, 3 * plan.parameters);
  config.checkpoint.every = config.training.steps;  // the last checkpoint, for which the run waits
  EXPECT_EQ(make_plan(config).snapshot_bytes, 0U);
  config.checkpoint.every = 0;
  EXPECT_EQ(make_plan(config).snapshot_bytes, 0U);
  config.checkpoint = {.every = 1, .asynchronous = config::Asynchronous::kFalse};
  EXPECT_EQ(make_plan(config).snapshot_bytes, 0U);
  EXPECT_EQ(make_plan(config).memory_bytes(), plan.memory_bytes());
}

TEST(Plan, ranks_of_a_block_share_experts) {
  config::RunConfig config = tiny();
  config.training.global_batch_size = 24;  // eight micro-batches: two micro-steps per EP group
  const distributed::ParallelDims dims = {.world_size = 4, .nodes = 1, .ep_size = 2};
  const uint64_t dense = 88 + 2 * (256 + 32 + 49) + 8, experts = 2 * 720, held = dense + experts / 2;
  const Plan plan = make_plan(config, dims);
  EXPECT_EQ(plan.memory_bytes("parameters"), dense + experts);
  EXPECT_EQ(plan.memory_bytes("compute_copies"), 4 * (held - (dense + experts) / 4));
  EXPECT_EQ(plan.memory_bytes("gradients"), 4 * (dense + experts) / 2);
  EXPECT_EQ(plan.memory_bytes("micro_batch_gradients"), 4U * 6 * 10 * 8);  // for gate and up, per rank
  // A token goes to 1.9 ranks on average. Two layers keep x and the gates of three experts. One layer's rows
  // are in transit in both directions.
  EXPECT_NEAR(static_cast<double>(plan.memory_bytes("exchange_buffers") - 2 * 4 * held),
              12 * 1.9 * (2 * (8 * 4 + 3 * 4) + 2 * 8 * 4), 0.5);
  config.parallel.reproducible = false;
  EXPECT_EQ(make_plan(config, dims).memory_bytes("gradients"), 4 * held);
  EXPECT_EQ(make_plan(config, dims).memory_bytes("micro_batch_gradients"), 4U * 3 * 10 * 8);
}

TEST(Plan, tasks_want_the_whole_model_on_a_rank_that_holds_a_part_of_it) {
  config::RunConfig config = tiny();
  config.model.ffn_hidden_size = 4096;  // parameters need more memory than activations
  config.validation.tasks = {"copa"};
  const distributed::ParallelDims dims = {.world_size = 4, .nodes = 1, .ep_size = 2};
  const Plan plan = make_plan(config, dims);
  EXPECT_EQ(plan.memory_bytes("task_model"), 4 * plan.parameters - plan.memory_bytes("gradients") -
                                                 plan.memory_bytes("micro_batch_gradients") -
                                                 plan.memory_bytes("activations"));
  EXPECT_THAT(lack_of_memory(config, plan, plan.memory_bytes() - 1),
              ::testing::HasSubstr("set validation.tasks to [], or "));
  for (const distributed::ParallelDims& other :
       {distributed::ParallelDims{.world_size = 4}, distributed::ParallelDims{}})  // gradients need as much
    EXPECT_EQ(make_plan(config, other).memory_bytes("task_model"), 0U) << other.world_size;
  config.validation.tasks.clear();
  EXPECT_EQ(make_plan(config, dims).memory_bytes("task_model"), 0U);
}

TEST(Plan, memory_with_recomputation_by_hand) {
  config::RunConfig config = tiny();
  config.model.sequence_length = 4096;  // activations far above what takes over their memory
  config.model.vocab_size = 5;          // a loss with less memory than what is computed again
  const Plan all = make_plan(config);
  config.training.recompute = config::Recompute::kMoe;
  const Plan moe = make_plan(config);
  config.training.recompute = config::Recompute::kLayer;
  const Plan layer = make_plan(config);
  const uint64_t T = 3 * 4096, stream = T * 8 * 4, experts = 3 * T * 2 * 5 * 4, pairs = 3 * T * 16;
  const uint64_t attention = 4 * stream + 6 * stream + T * 2 * 4;
  const uint64_t workspace = all.memory_bytes("workspace"), logits = T * 5 * 8;
  EXPECT_EQ(moe.memory_bytes("workspace"), workspace + experts);
  EXPECT_EQ(layer.memory_bytes("workspace"), workspace + attention - stream - logits);
  // The backward pass of the last layers releases what a layer computes again.
  EXPECT_EQ(all.memory_bytes("activations") - moe.memory_bytes("activations"),
            2 * (experts - pairs) + experts);
  const uint64_t kept = 2 * (2 * stream + T * 6 * 8 + pairs) + 2 * stream + T * 16;
  EXPECT_NEAR(static_cast<double>(layer.memory_bytes("activations")), 0.4 * static_cast<double>(kept), 1);
  for (const char* part : {"parameters", "gradients", "cross_entropy", "exchange_buffers"}) {
    EXPECT_EQ(all.memory_bytes(part), moe.memory_bytes(part)) << part;
    EXPECT_EQ(all.memory_bytes(part), layer.memory_bytes(part)) << part;
  }
  EXPECT_LT(layer.memory_bytes(), moe.memory_bytes());
  EXPECT_LT(moe.memory_bytes(), all.memory_bytes());
}

TEST(Plan, counts_the_products_that_are_computed_again) {
  config::RunConfig config = tiny();
  const Plan all = make_plan(config);
  EXPECT_EQ(all.recomputed_flops_per_token, 0U);
  config.training.recompute = config::Recompute::kMoe;
  const Plan moe = make_plan(config);
  EXPECT_EQ(moe.recomputed_flops_per_token, 2U * 2 * 3 * 10 * 8);  // layers, FLOPs, experts, gate and up
  EXPECT_EQ(moe.flops_per_token, all.flops_per_token);
  config.training.recompute = config::Recompute::kLayer;
  // Four projections, and scores and their product with the values: 2 S Q each, half of it behind the token.
  EXPECT_EQ(make_plan(config).recomputed_flops_per_token,
            moe.recomputed_flops_per_token + 2U * (2 * 4 * 8 * 8 + 2 * 4 * 8));
  config.model.num_experts = 1;
  EXPECT_EQ(make_plan(config).recomputed_flops_per_token, 2U * (2 * 4 * 8 * 8 + 2 * 4 * 8 + 2 * 3 * 5 * 8));
}

TEST(RequireMemory, names_recomputation_before_a_smaller_micro_batch) {
  config::RunConfig config = tiny();
  config.parallel.reproducible = false;
  config.model.sequence_length = 4096;
  config.training.micro_batch_size = config.training.global_batch_size;
  const Plan plan = make_plan(config);
  const auto with = [&](config::Recompute recompute) {
    config::RunConfig other = config;
    other.training.recompute = recompute;
    return make_plan(other).memory_bytes();
  };
  EXPECT_THAT(
      lack_of_memory(config, plan, with(config::Recompute::kMoe)),
      ::testing::HasSubstr("set training.recompute to moe, or lower training.micro_batch_size from 12"));
  EXPECT_THAT(
      lack_of_memory(config, plan, with(config::Recompute::kLayer)),
      ::testing::HasSubstr("set training.recompute to layer, or lower training.micro_batch_size from 12"));
  EXPECT_THAT(
      lack_of_memory(config, plan, with(config::Recompute::kLayer) - 1),
      ::testing::HasSubstr("set training.recompute to layer and lower training.micro_batch_size from 12"));
  EXPECT_THAT(lack_of_memory(config, plan, 1000), ::testing::HasSubstr("; make the model smaller"));
}

TEST(RequireMemory, names_a_micro_batch_that_fits_or_a_smaller_model) {
  config::RunConfig config = tiny();
  config.parallel.reproducible = false;
  config.training.recompute = config::Recompute::kLayer;
  const Plan plan = make_plan(config);
  const uint64_t needed = plan.memory_bytes();
  EXPECT_NO_THROW(require_memory(config, plan, config::Device::kCpu, needed));
  EXPECT_THAT(lack_of_memory(config, plan, needed - 1),
              ::testing::HasSubstr("; lower training.micro_batch_size from 3 to 2 or less"));
  try {
    require_memory(config, plan, config::Device::kCpu, 1000);
    FAIL() << "no error";
  } catch (const ResourceError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kResource);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("1.0 kB are available; make the model smaller"));
  }
  config.training.micro_batch_size = 2;
  EXPECT_NO_THROW(require_memory(config, make_plan(config), config::Device::kCpu, needed - 1));
}

TEST(RequireMemory, names_the_sums_that_need_not_be) {
  EXPECT_THAT(lack_of_memory(tiny(), make_plan(tiny()), 1000),
              ::testing::HasSubstr("set parallel.reproducible to false"));
}

}  // namespace
}  // namespace dtopp::plan
