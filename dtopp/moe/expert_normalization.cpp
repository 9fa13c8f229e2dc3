#include "dtopp/moe/expert_normalization.h"

#include "dtopp/moe/logit_sums.h"
#include "dtopp/ops/route/route.h"

namespace dtopp::moe {
namespace {

constexpr char kMean[] = "router_input_mean_LD", kSquare[] = "logit_square_LC",
               kSteps[] = "normalization_steps";
constexpr double kStepsPerAveragedStep = 100;

}  // namespace

ExpertNormalization::ExpertNormalization(const config::RunConfig& config, const at::Device& device)
    : mean_LD_(at::zeros({config.model.num_layers, config.model.hidden_size},
                         at::device(device).dtype(at::kDouble))),
      square_LC_(at::ones({config.model.num_layers, config.model.router_columns()}, mean_LD_.options())),
      steps_(at::zeros({}, mean_LD_.options().dtype(at::kLong))) {
  round_to_fp32();
}

void ExpertNormalization::round_to_fp32() {
  mean32_LD_ = mean_LD_.to(at::kFloat);
  inverse_std_LC_ = (square_LC_ + ops::kVarianceEpsilon).rsqrt().to(at::kFloat);
}

at::Tensor ExpertNormalization::normalize(int64_t layer, const at::Tensor& logits_TC,
                                          const at::Tensor& weight_CD) const {
  return (logits_TC - at::mv(weight_CD, mean32_LD_[layer])) * inverse_std_LC_[layer];
}

void ExpertNormalization::update(const at::Tensor& sums_LS, int64_t tokens, const at::Tensor& applied) {
  const int64_t D = mean_LD_.size(1), C = square_LC_.size(1);
  const at::Tensor means_LS = sums_LS.to(at::kDouble) * (kLogitSumUnit / static_cast<double>(tokens));
  const at::Tensor square_LC = means_LS.narrow(1, C + 1, C) * (square_LC_ + ops::kVarianceEpsilon);
  const at::Tensor earlier = steps_.to(at::kDouble) / kStepsPerAveragedStep;
  const auto averaged = [&](const at::Tensor& old, const at::Tensor& now) {
    return at::where(applied, (old * earlier + now) / (earlier + 1), old);
  };
  mean_LD_ = averaged(mean_LD_, means_LS.narrow(1, 2 * C + 1, D));
  square_LC_ = averaged(square_LC_, square_LC);
  steps_ = steps_ + applied.to(at::kLong);
  round_to_fp32();
}

ops::NamedTensors ExpertNormalization::state() const {
  return {{kMean, mean_LD_}, {kSquare, square_LC_}, {kSteps, steps_}};
}

bool ExpertNormalization::set_state(const std::string& name, const at::Tensor& value) {
  if (name == kMean)
    mean_LD_ = value;
  else if (name == kSquare)
    square_LC_ = value;
  else if (name == kSteps)
    steps_ = value;
  else
    return false;
  round_to_fp32();
  return true;
}

}  // namespace dtopp::moe
