#include "dtopp/moe/routers/logit_histogram.h"

namespace dtopp::moe {
namespace {

constexpr double kLowestLogit = -16, kBinsPerUnit = 32;

}  // namespace

at::Tensor logit_histogram(const at::Tensor& logits_TE) {
  const int64_t experts = logits_TE.size(1);
  const at::Tensor place_TE =
      ((logits_TE - kLowestLogit) * kBinsPerUnit).clamp(0, static_cast<double>(kLogitBins - 1)).nan_to_num(0);
  const at::Tensor first_E = at::arange(experts, logits_TE.options().dtype(at::kLong)) * kLogitBins;
  const at::Tensor bin = (place_TE.to(at::kLong) + first_E).view({-1});
  const at::Tensor counts = at::zeros({experts * kLogitBins}, bin.options());
  return counts.scatter_add(0, bin, at::ones_like(bin)).view({experts, kLogitBins});
}

at::Tensor ranked_logit(const at::Tensor& counts, int64_t rank) {
  const at::Tensor reached =
      counts.to(at::kDouble).flip({-1}).cumsum(-1).flip({-1});  // logits of a bin or above
  const at::Tensor bin = reached.ge(rank).sum(-1, /*keepdim=*/true).sub(1).clamp_min(0);
  const at::Tensor inside = counts.to(at::kDouble).gather(-1, bin);
  const at::Tensor above = reached.gather(-1, bin) - inside;
  const at::Tensor part = (static_cast<double>(rank) - above) / inside;  // of the bin, from its upper edge
  return ((bin + 1).to(at::kDouble) - part).div(kBinsPerUnit).add(kLowestLogit).squeeze(-1);
}

}  // namespace dtopp::moe
