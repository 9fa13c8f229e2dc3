// Tests cumulative_prob_histogram's CUDA kernel, run on a CPU, against the CPU kernel.
#include <gtest/gtest.h>

#include "dtopp/ops/route/cumulative_prob_bins.h"
#include "dtopp/ops/route/route.h"
#include "tests/ops/cuda/on_host.h"

namespace dtopp::ops::cumulative_prob_histogram_test {
namespace {

at::Tensor run_cuda(const at::Tensor& logits_TE, const at::Tensor& scale, std::string_view normalization,
                    int64_t max_experts, int64_t stride, int64_t zero_experts = 0) {
  return call_cuda<at::Tensor(const at::Tensor&, const at::Tensor&, c10::string_view, int64_t, int64_t,
                              int64_t)>("dtopp::cumulative_prob_histogram", logits_TE, scale,
                                        c10::string_view(normalization), max_experts, stride, zero_experts);
}

// Sums in another order may move a cumulative probability to the neighboring bin.
void expect_equal(const at::Tensor& cuda_M, const at::Tensor& cpu_M) {
  const int64_t count = cpu_M.sum().item<int64_t>();
  EXPECT_EQ(cuda_M.sum().item<int64_t>(), count);
  const at::Tensor apart_M = (cuda_M.cumsum(0) - cpu_M.cumsum(0)).abs();
  EXPECT_LE(apart_M.max().item<int64_t>(), 1 + count / 500);
}

TEST(CumulativeProbHistogramCuda, equals_the_cpu) {
  const PoisonedMemory poisoned;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const auto& [tokens, experts] :
         {std::pair<int64_t, int64_t>{0, 4}, {1, 1}, {37, 5}, {130, 33}, {9, 257}}) {
      for (const char* normalization : {"none", "fixed", "dynamic"}) {
        for (const auto& [cap, stride] : {std::pair<int64_t, int64_t>{0, 1}, {3, 1}, {0, 4}}) {
          SCOPED_TRACE(testing::Message() << tokens << " " << experts << " " << normalization << " " << cap);
          const at::Tensor logits_TE = at::randn({tokens, experts}, at::kDouble).mul(2).to(dtype);
          const auto real = dtype == at::kDouble ? at::kDouble : at::kFloat;
          const at::Tensor scale = at::scalar_tensor(1.3, at::TensorOptions(real));
          expect_equal(run_cuda(logits_TE, scale, normalization, cap, stride),
                       cumulative_prob_histogram(logits_TE, scale, normalization, cap, stride));
          if (experts < 4) continue;
          expect_equal(run_cuda(logits_TE, scale, normalization, cap, stride, 3),
                       cumulative_prob_histogram(logits_TE, scale, normalization, cap, stride, 3));
        }
      }
    }
  }
}

TEST(CumulativeProbHistogramCuda, orders_equal_experts_by_index_and_leaves_out_what_is_not_finite) {
  at::Tensor logits_TE = at::zeros({3, 6});
  logits_TE[1][2] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor scale = at::ones({});
  const at::Tensor counts_M = run_cuda(logits_TE, scale, "none", 0, 1);
  EXPECT_TRUE(at::equal(counts_M, cumulative_prob_histogram(logits_TE, scale, "none", 0, 1)));
  EXPECT_EQ(counts_M.sum().item<int64_t>(), 2 * 5);
  EXPECT_EQ(counts_M.gt(0).sum().item<int64_t>(), 5);
}

}  // namespace
}  // namespace dtopp::ops::cumulative_prob_histogram_test
