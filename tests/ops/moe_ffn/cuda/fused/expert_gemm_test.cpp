#include "dtopp/ops/moe_ffn/cuda/fused/expert_gemm.h"

#include <gtest/gtest.h>

namespace dtopp::ops::expert_gemm_test {
namespace {

TEST(ExpertGemms, are_named_alone_or_in_lists) {
  EXPECT_EQ(parse_fused_kernels("grouped_mm"), FusedKernelSet());
  EXPECT_EQ(parse_fused_kernels("fused"), FusedKernelSet("111111"));
  EXPECT_EQ(parse_fused_kernels("activation"), FusedKernelSet("000001"));
  EXPECT_EQ(parse_fused_kernels("gate_up_gradient,activation_gradient,activation"), FusedKernelSet("100101"));
  for (const char* text : {"", "fast", "activation,", ",activation", "activation, projection",
                           "fused,activation", "Activation", "activation_"})
    EXPECT_EQ(parse_fused_kernels(text), std::nullopt) << text;
}

TEST(ExpertGemms, are_written_as_they_are_read) {
  for (unsigned long fused = 0; fused < 64; ++fused)
    EXPECT_EQ(parse_fused_kernels(fused_kernels_text(FusedKernelSet(fused))), FusedKernelSet(fused)) << fused;
}

}  // namespace
}  // namespace dtopp::ops::expert_gemm_test
