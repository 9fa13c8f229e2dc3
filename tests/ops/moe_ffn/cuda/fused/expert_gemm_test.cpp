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

TEST(ExpertGemms, use_the_fused_kernels_of_a_table_unless_the_environment_names_others) {
  const auto fused = [](int64_t capability) { return fused_kernels_text(fused_kernels(capability)); };
  const std::string all = fused_kernels_text(~FusedKernelSet());
  for (const auto& [capability, expected] : std::vector<std::pair<int64_t, std::string>>{
           {75, "grouped_mm"},
           {80, all},
           {89, all},
           {90, "activation,activation_gradient,down_gradient,gate_up_gradient"},
           {100, "grouped_mm"},
           {103, "grouped_mm"},
           {120, all}}) {
    unsetenv("DTOPP_MOE_KERNELS");
    EXPECT_EQ(fused(capability), expected) << capability;
    setenv("DTOPP_MOE_KERNELS", "", 1);
    EXPECT_EQ(fused(capability), expected) << capability;
    setenv("DTOPP_MOE_KERNELS", "projection", 1);
    EXPECT_EQ(fused(capability), "projection") << capability;
  }
  unsetenv("DTOPP_MOE_KERNELS");
}

}  // namespace
}  // namespace dtopp::ops::expert_gemm_test
