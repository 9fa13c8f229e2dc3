#include "dtopp/models/batch_losses.h"

namespace dtopp {

RoutingInputs routing_inputs(const ThresholdController& controller, int64_t num_layers) {
  RoutingInputs inputs;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    inputs.threshold.push_back(controller.threshold(layer));
  }
  return inputs;
}

void add_router_losses(const std::vector<RouteOutput>& layers, const RoutingInputs& inputs,
                       const LossConfig& weights, BatchLosses& losses) {
  if (layers.empty()) return;
  const auto num_layers = static_cast<int64_t>(layers.size());
  losses.activations = ActivationStatistics(num_layers);
  losses.activations.add(layers);
  const bool earlier = inputs.earlier != nullptr && inputs.earlier->tokens() > 0;
  std::vector<at::Tensor> balance, dynamic, router_z;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const RouteOutput& routing = layers[layer];
    at::Tensor counts_E = routing.expert_counts_E;
    int64_t tokens = losses.activations.tokens();
    if (earlier) {
      counts_E = counts_E + inputs.earlier->expert_counts()[layer];
      tokens += inputs.earlier->tokens();
    }
    RouterLosses one = router_losses(routing, counts_E, tokens);
    balance.push_back(std::move(one.load_balance));
    dynamic.push_back(std::move(one.dynamic));
    router_z.push_back(std::move(one.router_z));
  }
  const auto add = [&](const char* name, double weight, const std::vector<at::Tensor>& per_layer) {
    const at::Tensor mean = at::stack(per_layer).mean();
    losses.values.emplace_back(name, mean.detach());
    if (weight != 0) losses.total = losses.total + mean * weight;
  };
  add("load_balance_loss", weights.load_balance, balance);
  add("dynamic_loss", weights.dynamic, dynamic);
  add("router_z_loss", weights.router_z, router_z);
}

}  // namespace dtopp
