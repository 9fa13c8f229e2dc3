#include "dtopp/moe/expert_bias.h"

#include <limits>

#include "dtopp/config/config.h"

namespace dtopp::moe {
namespace {

Tensor centered(const Tensor& bias_LE) {
  return (bias_LE - bias_LE.mean({1}, /*keepdim=*/true)).to(at::kFloat);
}

}  // namespace

ExpertBias::ExpertBias(const config::RunConfig& config, const at::Device& device)
    : rate_(config.routing.bias_rate),
      by_quantile_(config.routing.bias_rule == config::BiasRule::kQuantile),
      // The scores of top_k_bias lie in (0, 1); those of dtop_p_bias are logits with a deviation near 1.
      most_(config.routing.method == config::RoutingMethod::kTopKBias ? 2 : 16),
      stride_(cumulative_prob_stride(config.model.num_experts, config.model.tokens_per_sample(),
                                     config.training.global_batch_size * config.model.tokens_per_sample())) {
  if (!(rate_ > 0)) throw config::InvalidValue("routing.bias_rate", "must be positive");
  bias_LE_ =
      at::zeros({config.model.num_layers, config.model.num_experts}, at::device(device).dtype(at::kDouble));
  loaded();
}

Tensor ExpertBias::statistics(int64_t layer, const Tensor& score_SE, const Tensor& selected_SE) const {
  const Tensor sum_SE = score_SE + of_layer(layer);
  const Tensor infinite = at::full({}, std::numeric_limits<float>::infinity(), sum_SE.options());
  const Tensor lowest_in_S1 = at::where(selected_SE, sum_SE, infinite).amin({1}, /*keepdim=*/true);
  const Tensor highest_out_S1 = at::where(selected_SE, -infinite, sum_SE).amax({1}, /*keepdim=*/true);
  // If a token gave up a selected expert, it would select the highest of the others instead.
  const Tensor needed_SE = at::where(selected_SE, highest_out_S1, lowest_in_S1) - score_SE;
  const Tensor bin_SE = (at::nan_to_num(needed_SE) + most_)
                            .mul(static_cast<double>(kBins) / (2 * most_))
                            .clamp(0, kBins - 1)
                            .to(at::kLong);
  const auto whole = bin_SE.options();
  const Tensor index_SE = bin_SE + at::arange(bin_SE.size(1), whole) * kBins;
  return at::zeros({statistics_size()}, whole)
      .index_add(0, index_SE.flatten(), at::ones({index_SE.numel()}, whole));
}

Tensor ExpertBias::quantile_LE(const StepCounts& counts, const Tensor& statistics_LS) const {
  const Tensor& c_LE = counts.tokens_per_expert_LE;
  const Tensor counts_LEB = statistics_LS.view({c_LE.size(0), c_LE.size(1), kBins}).to(at::kDouble);
  const Tensor below_LEB = counts_LEB.cumsum(2);
  const Tensor share_L11 =
      (c_LE.sum(1).to(at::kDouble) / static_cast<double>(c_LE.size(1) * std::max<int64_t>(counts.tokens, 1)))
          .view({-1, 1, 1});
  const Tensor wanted_LE1 = share_L11 * below_LEB.narrow(2, kBins - 1, 1);
  const Tensor bin_LE1 = below_LEB.lt(wanted_LE1).sum({2}, /*keepdim=*/true).clamp_max(kBins - 1);
  const Tensor count_LE1 = counts_LEB.gather(2, bin_LE1);
  const Tensor before_LE1 = below_LEB.gather(2, bin_LE1) - count_LE1;
  const Tensor part_LE1 = (wanted_LE1 - before_LE1) / count_LE1.clamp_min(1);
  const Tensor bias_LE = ((bin_LE1 + part_LE1) * (2 * most_ / kBins) - most_).squeeze(2);
  return bias_LE - bias_LE.mean({1}, /*keepdim=*/true);
}

void ExpertBias::update(const StepCounts& counts, const Tensor& statistics_LS, const Tensor& applied) {
  if (by_quantile_) {
    bias_LE_ = at::where(applied, quantile_LE(counts, statistics_LS), bias_LE_);
    return loaded();
  }
  // In whole numbers: sign(mean - c) = sign(sum - E c).
  const Tensor& c_LE = counts.tokens_per_expert_LE;
  const Tensor sign_LE = (c_LE.sum(1, /*keepdim=*/true) - c_LE * c_LE.size(1)).sign().to(at::kDouble);
  add(sign_LE, applied);
}

void ExpertBias::add(const Tensor& error_LE, const Tensor& applied) {
  bias_LE_ = at::where(applied, bias_LE_ + error_LE * rate_, bias_LE_);
  loaded();
}

void ExpertBias::loaded() { centered_LE_ = centered(bias_LE_); }

ops::NamedTensors ExpertBias::metrics() const {
  return {{"bias_spread", std::get<0>(bias_LE_.max(1)) - std::get<0>(bias_LE_.min(1))}};
}

Tensor centered_bias_of(const Router* router) {
  if (router == nullptr) return {};
  for (const auto& [name, value] : router->state())
    if (name == "bias_LE") return centered(value);
  return {};
}

}  // namespace dtopp::moe
