// Tests the plan's figures for a CUDA device, which follow from the allocations of its operators.
#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/plan/plan.h"
#include "tests/plan/tiny_run.h"

namespace dtopp::plan {
namespace {

config::RunConfig tiny_in_bf16() { return tiny(config::Precision::kBf16); }

Plan cuda_plan(const config::RunConfig& config) {
  return make_plan(config, distributed::ParallelDims{}, config::Device::kCuda);
}

// 12 tokens of 8 bf16 values make a stream of 192 bytes. There are 36 token-expert pairs and a capacity of
// 45.
constexpr uint64_t kLayer = 4 * 192 + 12 * 16 + 6 * 192 + 12 * 2 * 4 + 12 * 6 * 8 + 45 * 2 * 5 * 2;
constexpr uint64_t kKept = 2 * kLayer + 2 * 192 + 12 * 16;

TEST(PlanForCuda, memory_in_bf16_by_hand) {
  const Plan plan = cuda_plan(tiny_in_bf16());
  const uint64_t P = plan.parameters, routers = 2 * 49;
  EXPECT_EQ(plan.memory_bytes("parameters"), 4 * P);
  EXPECT_EQ(plan.memory_bytes("optimizer_moments"), 8 * P);
  EXPECT_EQ(plan.memory_bytes("gradients"), 2 * 4 * P);
  EXPECT_EQ(plan.memory_bytes("compute_copies"), 2 * (P - routers));
  EXPECT_EQ(plan.memory_bytes("micro_batch_gradients"), 2U * 6 * 10 * 8);  // for gate and up
  // Logits in fp32 with their gradients in bf16, the gradient of the output weight, and the hidden states'
  // gradient.
  EXPECT_EQ(plan.memory_bytes("cross_entropy"), 12U * 11 * (4 + 2) + 11 * 8 * 4 + 192);
  // Per pair: the gradients of its output (D), activation (F), and gate and up (2 F), and the scaled
  // activation (F).
  EXPECT_EQ(plan.memory_bytes("workspace"),
            3U * 192 + 45 * (8 + 4 * 5) * 2 + 12 * 6 * 4 + /*the embedding's look-up*/ 11 * 8 * 2);
  EXPECT_EQ(plan.memory_bytes("program"), 576U << 20);
}

TEST(PlanForCuda, activations_are_there_in_full_or_one_layer_of_them_with_every_gradient) {
  // Micro-batch gradients of about 4 kB reuse the memory that all layers but one release.
  EXPECT_EQ(cuda_plan(tiny_in_bf16()).memory_bytes("activations"),
            std::max(kLayer, kKept - cuda_plan(tiny_in_bf16()).memory_bytes("micro_batch_gradients")));
  config::RunConfig config = tiny_in_bf16();
  config.model.vocab_size = 4096;
  EXPECT_EQ(cuda_plan(config).memory_bytes("activations"), kLayer);
}

TEST(PlanForCuda, forms_a_chunk_of_logits_at_a_time) {
  config::RunConfig config = tiny_in_bf16();
  config.model.vocab_size = 1 << 16;
  config.model.sequence_length = 1 << 12;  // 3 GiB of logits
  EXPECT_EQ(cuda_plan(config).memory_bytes("cross_entropy"),
            (uint64_t{1} << 30) + (uint64_t{1} << 29) + (uint64_t{1} << 16) * 8 * 4 + (3U << 12) * 8 * 2);
}

TEST(PlanForCuda, a_dense_layer_needs_no_room_for_pairs) {
  config::RunConfig config = tiny_in_bf16();
  config.model.num_experts = 1;
  EXPECT_EQ(cuda_plan(config).memory_bytes("workspace"), 3U * 192 + 12 * 4 * 5 * 2 + 11 * 8 * 2);
}

TEST(PlanForCuda, takes_auto_for_bf16) {
  config::RunConfig config = tiny_in_bf16();
  config.training.precision = config::Precision::kAuto;
  EXPECT_EQ(cuda_plan(config).precision, config::Precision::kBf16);
  EXPECT_EQ(cuda_plan(config).memory_bytes(), cuda_plan(tiny_in_bf16()).memory_bytes());
  config.training.precision = config::Precision::kFp32;
  EXPECT_EQ(cuda_plan(config).memory_bytes("compute_copies"), 0U);
}

TEST(PlanForCuda, changes_no_other_figure) {
  const Plan cuda = cuda_plan(tiny_in_bf16()), cpu = make_plan(tiny_in_bf16());
  EXPECT_EQ(cuda.parameters, cpu.parameters);
  EXPECT_EQ(cuda.active_parameters, cpu.active_parameters);
  EXPECT_EQ(cuda.flops_per_token, cpu.flops_per_token);
}

// The memory in use at the three possible peaks, added up independently of the plan's parts.
RC_GTEST_PROP(PlanForCudaProperty, covers_each_moment_of_a_step, ()) {
  config::RunConfig config = tiny_in_bf16();
  config.model.num_layers = *rc::gen::inRange<int64_t>(1, 6);
  config.model.sequence_length = *rc::gen::inRange<int64_t>(1, 2000);
  config.model.vocab_size = *rc::gen::inRange<int64_t>(2, 5000);
  const Plan plan = cuda_plan(config);
  const uint64_t tokens = 3 * static_cast<uint64_t>(config.model.sequence_length);
  const auto layers = static_cast<uint64_t>(config.model.num_layers);
  const uint64_t room = (tokens * 15 + 3) / 4;  // 1.25 x 3
  const uint64_t layer = tokens * (10 * 16 + 16 + 2 * 4 + 6 * 8 + 32) + (room - 1) * 20;
  const uint64_t kept = layers * layer + tokens * (2 * 16 + 16);
  const uint64_t fixed = plan.memory_bytes("parameters") + plan.memory_bytes("optimizer_moments") +
                         plan.memory_bytes("gradients") + plan.memory_bytes("compute_copies");
  RC_ASSERT(plan.memory_bytes() >= fixed + kept + plan.memory_bytes("cross_entropy"));
  RC_ASSERT(plan.memory_bytes() >= fixed + kept + plan.memory_bytes("workspace"));
  RC_ASSERT(plan.memory_bytes() >=
            fixed + layer + plan.memory_bytes("micro_batch_gradients") + plan.memory_bytes("workspace"));
}

RC_GTEST_PROP(PlanForCudaProperty, more_of_anything_never_costs_less, ()) {
  config::RunConfig config = tiny_in_bf16();
  config.model.num_experts = *rc::gen::inRange<int64_t>(2, 40);
  config.routing.experts = {static_cast<double>(*rc::gen::inRange<int64_t>(1, config.model.num_experts))};
  config.training.precision = *rc::gen::element(config::Precision::kFp32, config::Precision::kBf16);
  config.parallel.reproducible = false;  // otherwise fewer, larger micro-batches may need one sum less
  const uint64_t before = cuda_plan(config).memory_bytes();
  int64_t* const sizes[] = {&config.model.hidden_size, &config.model.num_layers,
                            &config.model.ffn_hidden_size, &config.model.sequence_length,
                            &config.training.micro_batch_size};
  *sizes[*rc::gen::inRange(0, 5)] *= 2;
  RC_ASSERT(cuda_plan(config).memory_bytes() > before);
}

void expect_refused_on_cuda_alone(config::RunConfig config, const std::string& key) {
  EXPECT_NO_THROW(make_plan(config, distributed::ParallelDims{}, config::Device::kCpu));
  try {
    cuda_plan(config);
    ADD_FAILURE() << key << " is not refused";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::StartsWith(key + ": "));
    EXPECT_THAT(error.what(), testing::HasSubstr("a CUDA device takes at most "));
  }
}

TEST(PlanForCuda, sizes_that_its_kernels_do_not_take_are_refused_by_key) {
  config::RunConfig experts = tiny(), wide = tiny(), tokens = tiny();
  experts.model.num_experts = 2048;
  EXPECT_NO_THROW(cuda_plan(experts));
  experts.model.num_experts = 2049;
  expect_refused_on_cuda_alone(experts, "model.num_experts");
  wide.model.hidden_size = 12280;
  EXPECT_NO_THROW(cuda_plan(wide));
  wide.model.hidden_size = 12288;
  expect_refused_on_cuda_alone(wide, "model.hidden_size");
  tokens.model.num_experts = 1024;
  tokens.training.micro_batch_size = tokens.training.global_batch_size = 1 << 20;
  expect_refused_on_cuda_alone(tokens, "training.micro_batch_size");
}

}  // namespace
}  // namespace dtopp::plan
