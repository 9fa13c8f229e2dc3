// Tests the choice of fused kernels per expert GEMM of moe_ffn; the results do not depend on it.
#include <gtest/gtest.h>

#include "dtopp/ops/moe_ffn/moe_ffn_pairs_cuda.h"
#include "tests/ops/cuda/moe_ffn_case.h"

namespace dtopp::ops::moe_ffn_test {
namespace {

// Fused kernels and torch's products exchange the same tensors, in any mixture.
TEST(MoeFfnGemmsOnHost, any_mixture_matches_double_precision) {
  cuda_on_host::set_device({2, 80, 163 << 10});  // its kernels run faster on a CPU
  const Case c = make_case({12, 16, 8, 2, 0.6}, at::kBFloat16);
  c.gates_TE.select(1, 0).zero_();
  for (unsigned fused = 0; fused < 64; ++fused) {
    const std::string products = fused_kernels_text(FusedKernelSet(fused));
    SCOPED_TRACE(products);
    setenv("DTOPP_MOE_KERNELS", products.c_str(), 1);
    expect_near_double_precision(c, 3);
  }
  unsetenv("DTOPP_MOE_KERNELS");
  cuda_on_host::set_device({});
}

TEST(MoeFfnGemmsOnHost, use_the_kernels_of_the_device) {
  const Case c = make_case({12, 16, 8, 2, 0.6}, at::kBFloat16);
  for (const int capability : {80, 90, 100}) {
    cuda_on_host::set_device({2, capability, 163 << 10});
    EXPECT_EQ(cuda::choose_gemms(c.gate_up_proj, c.down_proj).fused, fused_kernels(capability)) << capability;
  }
  cuda_on_host::set_device({});
}

}  // namespace
}  // namespace dtopp::ops::moe_ffn_test
