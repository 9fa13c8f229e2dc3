#include "dtopp/moe/routers/ranked_logit.h"

#include "dtopp/ops/route/logit_histogram.h"

namespace dtopp::moe {

at::Tensor ranked_logit(const at::Tensor& counts, int64_t rank) {
  const at::Tensor reached =
      counts.to(at::kDouble).flip({-1}).cumsum(-1).flip({-1});  // logits of a bin or above
  const at::Tensor bin = reached.ge(rank).sum(-1, /*keepdim=*/true).sub(1).clamp_min(0);
  const at::Tensor inside = counts.to(at::kDouble).gather(-1, bin);
  const at::Tensor above = reached.gather(-1, bin) - inside;
  const at::Tensor part = (static_cast<double>(rank) - above) / inside;  // of the bin, from its upper edge
  return ((bin + 1).to(at::kDouble) - part).div(ops::kLogitBinsPerUnit).add(ops::kLowestLogit).squeeze(-1);
}

}  // namespace dtopp::moe
