#include "dtopp/moe/active_expert_curve.h"

#include "dtopp/ops/route/cumulative_prob_bins.h"

namespace dtopp::moe {
namespace {

// values_CM at one index per row.
at::Tensor at_index(const at::Tensor& values_CM, const at::Tensor& index_C) {
  return values_CM.gather(1, index_C.unsqueeze(1)).squeeze(1);
}

}  // namespace

at::Tensor cumulative_prob_bin_edges(const at::Device& device) {
  const auto edges = ops::cumulative_prob_edges();
  return at::tensor(at::ArrayRef<double>(edges.data(), edges.size()), at::kDouble).to(device);
}

ActiveExpertCurve::ActiveExpertCurve(const at::Tensor& prob_histogram_CM, const at::Tensor& edges)
    : edges_(edges),
      prob_histogram_CM_(prob_histogram_CM.to(at::kDouble)),
      up_to_CM_(prob_histogram_CM_.cumsum(1)) {}

at::Tensor ActiveExpertCurve::below(const at::Tensor& p_C) const {
  const at::Tensor bin_C = at::searchsorted(edges_, p_C, /*out_int32=*/false, /*right=*/true)
                               .sub(1)
                               .clamp(0, prob_histogram_CM_.size(1) - 1);
  const at::Tensor begin_C = edges_.index_select(0, bin_C), end_C = edges_.index_select(0, bin_C + 1);
  const at::Tensor inside_C = at_index(prob_histogram_CM_, bin_C);
  return at_index(up_to_CM_, bin_C) - inside_C * ((end_C - p_C) / (end_C - begin_C));
}

at::Tensor ActiveExpertCurve::threshold(const at::Tensor& count_C) const {
  const at::Tensor all_C = up_to_CM_.select(1, -1);
  const at::Tensor bin_C =
      at::searchsorted(up_to_CM_, count_C.unsqueeze(1)).squeeze(1).clamp(0, prob_histogram_CM_.size(1) - 1);
  const at::Tensor begin_C = edges_.index_select(0, bin_C), end_C = edges_.index_select(0, bin_C + 1);
  const at::Tensor beyond_C = (at_index(up_to_CM_, bin_C) - count_C) / at_index(prob_histogram_CM_, bin_C);
  at::Tensor p_C = (end_C - (end_C - begin_C) * beyond_C).clamp(kMinThreshold, kMaxThreshold);
  p_C = at::where(count_C.le(0), at::full_like(p_C, kMinThreshold), p_C);
  return at::where(count_C.ge(all_C), at::full_like(p_C, kMaxThreshold), p_C);
}

}  // namespace dtopp::moe
