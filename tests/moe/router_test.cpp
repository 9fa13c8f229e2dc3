#include "dtopp/moe/router.h"

#include <gtest/gtest.h>

namespace dtopp::moe {
namespace {

int64_t stride(int64_t num_experts, int64_t tokens_per_sample = 2048, int64_t tokens_per_step = 1 << 20) {
  return cumulative_prob_stride(num_experts, tokens_per_sample, tokens_per_step);
}

TEST(TokenSampling, takes_fewer_tokens_from_32_experts_on) {
  EXPECT_EQ(stride(8), 1);
  EXPECT_EQ(stride(31), 1);
  EXPECT_EQ(stride(32), 2);
  EXPECT_EQ(stride(63), 2);
  EXPECT_EQ(stride(64), 4);
  EXPECT_EQ(stride(128), 8);
  EXPECT_EQ(stride(1024), 8);
}

TEST(TokenSampling, leaves_2048_tokens_a_step_and_divides_a_sample) {
  EXPECT_EQ(stride(128, 2048, 8 * 2048), 8);
  EXPECT_EQ(stride(128, 2048, 8 * 2048 - 1), 4);
  EXPECT_EQ(stride(128, 2048, 2047), 1);
  EXPECT_EQ(stride(128, 6), 2);
  EXPECT_EQ(stride(128, 77), 1);
}

TEST(TokenSampling, leaves_1024_tokens_of_the_logits) {
  EXPECT_EQ(logit_sum_stride(256, 512), 1);
  EXPECT_EQ(logit_sum_stride(256, 4096), 4);
  EXPECT_EQ(logit_sum_stride(256, 4095), 2);
  EXPECT_EQ(logit_sum_stride(256, 1 << 20), 256);  // one token of each sample
  EXPECT_EQ(logit_sum_stride(255, 1 << 20), 1);
}

}  // namespace

}  // namespace dtopp::moe
