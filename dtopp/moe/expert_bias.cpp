#include "dtopp/moe/expert_bias.h"

#include "dtopp/config/config.h"

namespace dtopp::moe {
namespace {

at::Tensor centred(const at::Tensor& bias_LE) {
  return (bias_LE - bias_LE.mean({1}, /*keepdim=*/true)).to(at::kFloat);
}

}  // namespace

ExpertBias::ExpertBias(const config::RunConfig& config, const at::Device& device)
    : rate_(config.routing.bias_rate) {
  if (!(rate_ > 0)) throw config::InvalidValue("routing.bias_rate", "must be positive");
  set_state("bias_LE", at::zeros({config.model.num_layers, config.model.num_experts},
                                 at::device(device).dtype(at::kDouble)));
}

void ExpertBias::update(const at::Tensor& tokens_per_expert_LE, const at::Tensor& applied) {
  // In whole numbers: sign(mean - c) = sign(sum - E c).
  const at::Tensor& c_LE = tokens_per_expert_LE;
  const at::Tensor sign_LE = (c_LE.sum(1, /*keepdim=*/true) - c_LE * c_LE.size(1)).sign().to(at::kDouble);
  add(sign_LE, applied);
}

void ExpertBias::add(const at::Tensor& error_LE, const at::Tensor& applied) {
  set_state("bias_LE", at::where(applied, bias_LE_ + error_LE * rate_, bias_LE_));
}

bool ExpertBias::set_state(const std::string& name, const at::Tensor& value) {
  if (name != "bias_LE") return false;
  bias_LE_ = value;
  centred_LE_ = centred(value);
  return true;
}

ops::NamedTensors ExpertBias::metrics() const {
  return {{"bias_spread", std::get<0>(bias_LE_.max(1)) - std::get<0>(bias_LE_.min(1))}};
}

at::Tensor centred_bias_of(const Router* router) {
  if (router == nullptr) return {};
  for (const auto& [name, value] : router->state()) {
    if (name == "bias_LE") return centred(value);
  }
  return {};
}

}  // namespace dtopp::moe
