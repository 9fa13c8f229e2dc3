#include "dtopp/ops/route/cumulative_prob_histogram_cuda.h"

#include "dtopp/ops/cuda/cuda_tensor.h"
#include "dtopp/ops/route/cumulative_prob_bins.h"
#include "dtopp/ops/route/route_kernel.h"

namespace dtopp::ops {
namespace {

at::Tensor cumulative_prob_histogram_cuda(const at::Tensor& logits_TE, const at::Tensor& scale,
                                          c10::string_view normalization, int64_t max_experts, int64_t stride,
                                          int64_t zero_experts) {
  check_cumulative_prob_histogram(logits_TE, scale, normalization, max_experts, stride, zero_experts);
  const c10::DeviceGuard guard(logits_TE.device());
  cuda::check_number_of_experts("cumulative_prob_histogram", logits_TE.size(1));
  const at::Tensor logits = logits_TE.contiguous(), theta = scale.to(accumulator_type(logits_TE));
  at::Tensor counts = at::zeros({kCumulativeProbBins}, logits_TE.options().dtype(at::kLong));
  cuda::dispatch(logits, [&](auto scalar) {
    using Scalar = decltype(scalar);
    cuda::cumulative_prob_histogram<Scalar>(
        {cuda::read<Scalar>(logits), cuda::read<cuda::Accumulator<Scalar>>(theta), logits.size(0),
         logits.size(1), zero_experts, stride,
         route_rule(normalization, logits.size(1), /*top_k=*/0, max_experts, /*renormalize=*/false),
         cuda::write<int64_t>(counts)},
        cuda::current_stream(logits));
  });
  return counts;
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CUDA, m) { m.impl("cumulative_prob_histogram", cumulative_prob_histogram_cuda); }

}  // namespace dtopp::ops
