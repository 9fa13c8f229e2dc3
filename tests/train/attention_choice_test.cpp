// Which attention kernel a training takes: the rule, and that the measurement runs (here on the CPU, where
// both are one).
#include "dtopp/train/attention_choice.h"

#include <limits>

#include <gtest/gtest.h>

namespace dtopp {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Puts back what the test has changed for the process.
class AttentionChoice : public testing::Test {
 protected:
  ~AttentionChoice() override { prefer_attention(before_); }

 private:
  AttentionKernel before_ = preferred_attention();
};

TEST_F(AttentionChoice, is_the_other_kernel_only_where_that_is_three_percent_faster) {
  using enum AttentionKernel;
  EXPECT_EQ(faster_attention({.cudnn = 1, .flash = 2}, kCudnn), kCudnn);
  EXPECT_EQ(faster_attention({.cudnn = 2, .flash = 1}, kCudnn), kFlash);
  EXPECT_EQ(faster_attention({.cudnn = 1, .flash = 1}, kFlash), kFlash);
  EXPECT_EQ(faster_attention({.cudnn = 1, .flash = 1.02}, kFlash), kFlash);
  EXPECT_EQ(faster_attention({.cudnn = 1, .flash = 1.04}, kFlash), kCudnn);
  EXPECT_EQ(faster_attention({.cudnn = kNever, .flash = 9}, kCudnn), kFlash);
  EXPECT_EQ(faster_attention({.cudnn = kNever, .flash = 9}, kFlash), kFlash);
  EXPECT_EQ(faster_attention({.cudnn = kNever, .flash = kNever}, kCudnn), kCudnn);
}

TEST_F(AttentionChoice, is_what_libtorch_asks_first) {
  const auto first = [] { return at::globalContext().sDPPriorityOrder()[0]; };
  prefer_attention(AttentionKernel::kFlash);
  EXPECT_EQ(first(), at::SDPBackend::flash_attention);
  EXPECT_EQ(preferred_attention(), AttentionKernel::kFlash);
  prefer_attention(AttentionKernel::kCudnn);
  EXPECT_EQ(first(), at::SDPBackend::cudnn_attention);
  EXPECT_EQ(preferred_attention(), AttentionKernel::kCudnn);
}

TEST_F(AttentionChoice, is_measured_at_the_shape_of_a_micro_batch_and_keeps_the_order) {
  prefer_attention(AttentionKernel::kFlash);
  for (const bool causal : {true, false}) {
    const AttentionTimes times = time_attention(
        {.samples = 2, .heads = 3, .tokens = 40, .head_size = 16, .causal = causal}, at::Device(at::kCPU));
    for (const double milliseconds : {times.cudnn, times.flash}) {
      EXPECT_GT(milliseconds, 0);
      EXPECT_LT(milliseconds, kNever);
    }
  }
  EXPECT_EQ(preferred_attention(), AttentionKernel::kFlash);
}

TEST_F(AttentionChoice, is_of_the_runs_own_shapes) {
  RunConfig config;
  config.training.micro_batch_size = 4;
  config.model.hidden_size = 256;
  config.model.num_heads = 8;
  config.model.sequence_length = 512;
  AttentionShape shape = attention_shape(config);
  EXPECT_EQ(shape.samples, 4);
  EXPECT_EQ(shape.heads, 8);
  EXPECT_EQ(shape.tokens, 512);
  EXPECT_EQ(shape.head_size, 32);
  EXPECT_TRUE(shape.causal);
  config.model.type = ModelType::kDiffusionTransformer;
  shape = attention_shape(config);
  EXPECT_EQ(shape.tokens, config.model.tokens_per_sample());
  EXPECT_FALSE(shape.causal);
}

TEST_F(AttentionChoice, is_left_alone_on_a_cpu) {
  const AttentionKernel before = preferred_attention();
  choose_attention({}, at::Device(at::kCPU), [](const std::string& text) { ADD_FAILURE() << text; });
  EXPECT_EQ(preferred_attention(), before);
}

}  // namespace
}  // namespace dtopp
