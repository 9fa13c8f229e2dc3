#include "dtopp/ops/route/cumulative_prob_histogram.h"

#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/route/cumulative_prob_bins.h"
#include "dtopp/ops/route/route_kernel.h"

namespace dtopp::ops {
namespace {

at::Tensor cumulative_prob_histogram_meta(const at::Tensor& logits_TE, const at::Tensor& scale,
                                          c10::string_view normalization, int64_t max_experts, int64_t stride,
                                          int64_t zero_experts) {
  check_cumulative_prob_histogram(logits_TE, scale, normalization, max_experts, stride, zero_experts);
  return at::empty({kCumulativeProbBins}, logits_TE.options().dtype(at::kLong));
}

}  // namespace

void check_cumulative_prob_histogram(const at::Tensor& logits_TE, const at::Tensor& scale,
                                     c10::string_view normalization, int64_t max_experts, int64_t stride,
                                     int64_t zero_experts) {
  check_router_logits("cumulative_prob_histogram", logits_TE, scale, normalization);
  TORCH_CHECK(max_experts >= 0, "cumulative_prob_histogram: expected max_experts of at least 0, got ",
              max_experts);
  TORCH_CHECK(stride >= 1, "cumulative_prob_histogram: expected a stride of at least 1, got ", stride);
  TORCH_CHECK(zero_experts >= 0 && zero_experts < logits_TE.sym_size(1),
              "cumulative_prob_histogram: expected fewer zero experts than ", logits_TE.sym_size(1), ", got ",
              zero_experts);
}

at::Tensor cumulative_prob_histogram(const at::Tensor& logits_TE, const at::Tensor& scale,
                                     std::string_view normalization, int64_t max_experts, int64_t stride,
                                     int64_t zero_experts) {
  return call_op<"dtopp::cumulative_prob_histogram", decltype(cumulative_prob_histogram_meta)>(
      logits_TE, scale, c10::string_view(normalization), max_experts, stride, zero_experts);
}

TORCH_LIBRARY_FRAGMENT(dtopp, m) {
  m.def(
      "cumulative_prob_histogram(Tensor logits_TE, Tensor scale, *, str normalization=\"dynamic\", int "
      "max_experts=0, "
      "int stride=1, int zero_experts=0) -> Tensor");
}

TORCH_LIBRARY_IMPL(dtopp, Meta, m) { m.impl("cumulative_prob_histogram", cumulative_prob_histogram_meta); }

}  // namespace dtopp::ops
