#include "dtopp/moe/expert_normalization.h"

#include "dtopp/ops/route/route.h"

namespace dtopp::moe {
namespace {

constexpr double kStepsPerAveragedStep = 100;
constexpr double kLargestValue = 1 << 20;

Tensor whole_sums(const Tensor& values) {
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

Tensor logit_sums(const Tensor& logits_TC, const Tensor& x_TD, int64_t stride) {
  const at::NoGradGuard no_grad;
  const Tensor z_TC = logits_TC.slice(0, 0, std::nullopt, stride);
  const Tensor c_TC = z_TC - z_TC.mean({-1}, /*keepdim=*/true);
  Tensor sums = at::cat({whole_sums(c_TC), whole_sums(c_TC.square().sum({-1}, /*keepdim=*/true))});
  if (!x_TD.defined()) return sums;
  const Tensor x_SD = x_TD.slice(0, 0, std::nullopt, stride).to(at::kFloat);
  return at::cat({sums, whole_sums(z_TC.square()), whole_sums(x_SD)});
}

Tensor common_logit_share(const Tensor& sums_LS, int64_t num_logits, int64_t tokens) {
  const Tensor sums_LC = sums_LS.narrow(1, 0, num_logits);
  const Tensor squares_L = sums_LS.select(1, num_logits) * (static_cast<double>(tokens) / kLogitSumUnit);
  return at::where(squares_L > 0, sums_LC.square().sum({1}) / squares_L, 0.0);
}

ExpertNormalization::ExpertNormalization(const config::RunConfig& config, const at::Device& device)
    : mean_LD_(at::zeros({config.model.num_layers, config.model.hidden_size},
                         at::device(device).dtype(at::kDouble))),
      square_LC_(at::ones({config.model.num_layers, config.model.router_columns()}, mean_LD_.options())),
      steps_(at::zeros({}, mean_LD_.options().dtype(at::kLong))) {
  loaded();
}

void ExpertNormalization::loaded() {
  mean32_LD_ = mean_LD_.to(at::kFloat);
  inverse_std_LC_ = (square_LC_ + ops::kVarianceEpsilon).rsqrt().to(at::kFloat);
}

ExpertNormalization::Folded ExpertNormalization::fold(int64_t layer, const Tensor& weight_CD) const {
  const Tensor scaled_CD = weight_CD * inverse_std_LC_[layer].unsqueeze(1);
  return {scaled_CD, at::mv(scaled_CD, mean32_LD_[layer])};
}

void ExpertNormalization::update(const Tensor& sums_LS, int64_t tokens, const Tensor& applied) {
  const int64_t D = mean_LD_.size(1), C = square_LC_.size(1);
  const Tensor means_LS = sums_LS.to(at::kDouble) * (kLogitSumUnit / static_cast<double>(tokens));
  const Tensor square_LC = means_LS.narrow(1, C + 1, C) * (square_LC_ + ops::kVarianceEpsilon);
  const Tensor earlier = steps_.to(at::kDouble) / kStepsPerAveragedStep;
  // A layer that routes by token id has no logits.
  const Tensor moves_L1 = means_LS.narrow(1, C + 1, C).sum(1, /*keepdim=*/true).gt(0).logical_and(applied);
  const auto averaged = [&](const Tensor& old, const Tensor& now) {
    return at::where(moves_L1, (old * earlier + now) / (earlier + 1), old);
  };
  mean_LD_ = averaged(mean_LD_, means_LS.narrow(1, 2 * C + 1, D));
  square_LC_ = averaged(square_LC_, square_LC);
  steps_ = steps_ + applied.to(at::kLong);
  loaded();
}

void ExpertNormalization::list_state(ops::StateTensors& list) {
  list.emplace_back("router_input_mean_LD", &mean_LD_);
  list.emplace_back("logit_square_LC", &square_LC_);
  list.emplace_back("normalization_steps", &steps_);
}

}  // namespace dtopp::moe
