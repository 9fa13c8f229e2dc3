#include "dtopp/moe/logit_sums.h"

namespace dtopp::moe {
namespace {

constexpr double kLargestValue = 1 << 20;

at::Tensor whole_sums(const at::Tensor& values) {
  return values.nan_to_num(0)
      .clamp_(-kLargestValue, kLargestValue)
      .mul_(1 / kLogitSumUnit)
      .round_()
      .to(at::kLong)
      .sum(0);
}

}  // namespace

int64_t logit_sums_size(const config::RunConfig& config) {
  if (!config::has_logits(config.routing.method)) return 0;
  const int64_t C = config.model.router_columns();
  const bool normalizes = config.routing.expert_normalization != config::ExpertNormalization::kNone;
  return C + 1 + (normalizes ? C + config.model.hidden_size : 0);
}

at::Tensor logit_sums(const at::Tensor& logits_TC, const at::Tensor& x_TD, int64_t stride) {
  const at::NoGradGuard no_grad;
  const at::Tensor z_TC = logits_TC.slice(0, 0, std::nullopt, stride);
  const at::Tensor c_TC = z_TC - z_TC.mean({-1}, /*keepdim=*/true);
  at::Tensor sums = at::cat({whole_sums(c_TC), whole_sums(c_TC.square().sum({-1}, /*keepdim=*/true))});
  if (!x_TD.defined()) return sums;
  const at::Tensor x_SD = x_TD.slice(0, 0, std::nullopt, stride).to(at::kFloat);
  return at::cat({sums, whole_sums(z_TC.square()), whole_sums(x_SD)});
}

at::Tensor common_logit_share(const at::Tensor& sums_LS, int64_t num_logits, int64_t tokens) {
  const at::Tensor sums_LC = sums_LS.narrow(1, 0, num_logits);
  const at::Tensor squares_L = sums_LS.select(1, num_logits) * (static_cast<double>(tokens) / kLogitSumUnit);
  return at::where(squares_L > 0, sums_LC.square().sum({1}) / squares_L, 0.0);
}

}  // namespace dtopp::moe
