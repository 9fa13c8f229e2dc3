#include "dtopp/plan/new_run.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/plan/plan.h"

namespace dtopp::plan {
namespace {

NewRunData text(uint64_t tokens = 100'000'000'000, int64_t vocab_size = 4096) {
  return {{{"data/train"}}, {{"data/validation"}}, vocab_size, tokens, 1'000'000};
}

TEST(NewRun, sizes_come_near_to_the_wish_with_a_usual_aspect) {
  for (const int64_t active :
       {1'000'000L, 3'000'000L, 10'000'000L, 100'000'000L, 300'000'000L, 1'000'000'000L}) {
    const config::RunConfig config = new_run({.active = active}, text()).config;
    const config::ModelConfig& model = config.model;
    const double aspect = static_cast<double>(model.hidden_size) / static_cast<double>(model.num_layers);
    EXPECT_NEAR(static_cast<double>(make_plan(config).active_parameters) / static_cast<double>(active), 1,
                0.1);
    EXPECT_EQ(model.hidden_size % (model.hidden_size < 256 ? 32 : 64), 0);
    EXPECT_GE(aspect, 32);
    EXPECT_LE(aspect, 128);
    EXPECT_EQ(model.head_size(), model.hidden_size < 256 ? 32 : 64);
    EXPECT_EQ(model.ffn_hidden_size % 16, 0);
    EXPECT_LE(std::abs(static_cast<double>(8 * model.ffn_hidden_size) -
                       8.0 / 3 * static_cast<double>(model.hidden_size)),
              8 * 8);
    EXPECT_NO_THROW(config::validate_values(config));
  }
}

TEST(NewRun, rate_and_batch_follow_the_law_of_deepseek) {
  const config::RunConfig config = new_run({.active = 100'000'000}, text()).config;
  const Plan plan = make_plan(config);
  const auto tokens = static_cast<double>(plan.tokens_per_step) * static_cast<double>(config.training.steps);
  const double embedding = 6.0 * static_cast<double>(config.model.vocab_size * config.model.hidden_size);
  const double flops = tokens * (static_cast<double>(plan.flops_per_token) - embedding);
  EXPECT_NEAR(tokens / static_cast<double>(plan.active_parameters), 20, 0.01);
  EXPECT_NEAR(config.optimizer.lr / (0.3118 * std::pow(flops, -0.125)), 1, 0.05);
  EXPECT_LE(
      std::abs(std::log2(static_cast<double>(plan.tokens_per_step) / (0.292 * std::pow(flops, 0.3271)))),
      0.51);
  EXPECT_NEAR(config.optimizer.min_lr * 100 / config.optimizer.lr, 1, 0.01);
  EXPECT_EQ(config.optimizer.warmup_steps, std::min<int64_t>(config.training.steps / 4, 2500));
}

// Source: benchmarks/studies/balance.md: `lab` trains 512 steps of 8,192 tokens; 6e-3 and 1e-2 are its best
// rates.
TEST(NewRun, the_law_agrees_with_our_lab) {
  const config::RunConfig config =
      new_run(
          {.active = 1'700'000, .tokens = 4'194'304, .experts = 4, .num_experts = 32, .sequence_length = 512},
          text(8'200'000, 8192))
          .config;
  EXPECT_EQ(config.training.steps, 512);
  EXPECT_EQ(config.training.global_batch_size, 16);
  EXPECT_GE(config.optimizer.lr, 6e-3);
  EXPECT_LE(config.optimizer.lr, 1e-2);
}

TEST(NewRun, a_run_reads_its_data_at_most_four_times_and_has_500_steps) {
  const config::RunConfig config = new_run({.active = 10'000'000}, text(2'000'000)).config;
  const int64_t per_step = config.training.global_batch_size * 1024;
  EXPECT_EQ(config.training.steps, (8'000'000 + per_step - 1) / per_step);
  EXPECT_GE(config.training.steps, 500);
}

TEST(NewRun, refuses_a_vocabulary_that_is_too_large_and_text_that_is_too_short) {
  EXPECT_THROW(new_run({.active = 1'000'000}, text(1'000'000, 50304)), UsageError);
  EXPECT_THROW(new_run({.active = 1'000'000}, text(1024)), UsageError);
}

TEST(NewRun, the_micro_batch_is_the_largest_that_fits) {
  NewRun run = new_run({.active = 3'000'000, .sequence_length = 256}, text());
  run.config.training.micro_batch_size = 4;
  const auto needed = static_cast<double>(make_plan(run.config).memory_bytes());
  fit_micro_batch(run, config::Device::kCpu, static_cast<uint64_t>(std::ceil(needed / (1 - kSpareMemory))));
  EXPECT_EQ(run.config.training.micro_batch_size, 4);
  EXPECT_THROW(fit_micro_batch(run, config::Device::kCpu, 1 << 20), UsageError);
}

TEST(NewRun, scaling_keeps_the_ratios_and_follows_the_exponents) {
  const config::RunConfig like =
      config::load_run_config(std::string(DTOPP_SOURCE_DIR) + "/configs/lab.yaml", {"method=top_k"});
  const config::RunConfig config = scaled_run(like, "lab.yaml", {.active = 40'000'000}, {}).config;
  const Plan before = make_plan(like), plan = make_plan(config);
  const auto law = [](const config::RunConfig& run, const Plan& figures) {
    return static_cast<double>(figures.tokens_per_step * static_cast<uint64_t>(run.training.steps)) *
           (static_cast<double>(figures.flops_per_token) -
            6.0 * static_cast<double>(run.model.vocab_size * run.model.hidden_size));
  };
  const double ratio = law(config, plan) / law(like, before);
  EXPECT_NEAR(static_cast<double>(plan.active_parameters), 40e6, 4e6);
  EXPECT_EQ(config.model.ffn_hidden_size * 2, config.model.hidden_size);  // as 64 and 128
  EXPECT_EQ(config.model.head_size(), like.model.head_size());
  EXPECT_EQ(config.model.num_experts, like.model.num_experts);
  EXPECT_EQ(config.routing.method, config::RoutingMethod::kTopK);
  EXPECT_NEAR(config.optimizer.lr / (like.optimizer.lr * std::pow(ratio, -0.125)), 1, 0.05);
  EXPECT_LE(std::abs(std::log2(static_cast<double>(plan.tokens_per_step) /
                               (static_cast<double>(before.tokens_per_step) * std::pow(ratio, 0.3271)))),
            0.51);
  EXPECT_NEAR(static_cast<double>(plan.tokens_per_step * static_cast<uint64_t>(config.training.steps)) /
                  static_cast<double>(before.tokens_per_step * 512),
              static_cast<double>(plan.active_parameters) / static_cast<double>(before.active_parameters),
              0.1);
  EXPECT_NEAR(static_cast<double>(config.optimizer.warmup_steps) / static_cast<double>(config.training.steps),
              0.5, 0.01);
}

TEST(NewRun, the_commented_file_reads_back_to_the_same_run) {
  NewRun run = new_run({.active = 3'000'000}, text());
  run.config.name = run.config.output = "mine";
  const std::string yaml = commented_yaml(run, "");
  EXPECT_THAT(config::differing_keys(config::parse_run_config(yaml, "mine.yaml"), run.config),
              testing::IsEmpty());
}

}  // namespace
}  // namespace dtopp::plan
