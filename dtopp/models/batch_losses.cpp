#include "dtopp/models/batch_losses.h"

#include <algorithm>

namespace dtopp {
namespace {

at::Tensor share_of(const RoutingInputs& inputs, const ActivationStatistics& counts, int64_t layer) {
  const at::Tensor own_E = counts.tokens_per_expert()[layer].to(at::kFloat) /
                           static_cast<double>(std::max<int64_t>(counts.tokens(), 1));
  if (!inputs.share_LE.defined()) return own_E;
  const at::Tensor share_E = inputs.share_LE[layer];
  return at::where(share_E.sum() > 0, share_E, own_E);
}

at::Tensor prob_histograms_of(const std::vector<RouteOutput>& layers,
                              const CumulativeProbSampling& sampling) {
  if (sampling.stride == 0) return {};
  std::vector<at::Tensor> histograms;
  for (const RouteOutput& layer : layers) histograms.push_back(layer.prob_histogram_M);
  const at::Tensor prob_histogram_LM = at::stack(histograms);
  return sampling.per_layer ? prob_histogram_LM : prob_histogram_LM.sum(0, /*keepdim=*/true);
}

}  // namespace

RoutingInputs routing_inputs(const ThresholdController& controller, int64_t num_layers) {
  RoutingInputs inputs;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    inputs.threshold.push_back(controller.threshold(layer));
  }
  return inputs;
}

at::Tensor num_assignments_by_sample(const std::vector<RouteOutput>& layers, int64_t samples) {
  if (layers.empty()) return at::zeros({samples, 0}, at::kLong);
  std::vector<at::Tensor> per_layer;
  for (const RouteOutput& layer : layers)
    per_layer.push_back(layer.gates_TE.ne(0).view({samples, -1}).sum(1));
  return at::stack(per_layer, 1);
}

void add_router_losses(const std::vector<RouteOutput>& layers, const RoutingInputs& inputs,
                       const LossConfig& weights, BatchLosses& losses) {
  if (layers.empty()) return;
  const auto num_layers = static_cast<int64_t>(layers.size());
  losses.activations = ActivationStatistics(num_layers);
  losses.activations.add(layers);
  losses.prob_histogram_CM = prob_histograms_of(layers, inputs.router.sampling);
  std::vector<at::Tensor> balance, dynamic, router_z;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    RouterLosses one = router_losses(layers[layer], share_of(inputs, losses.activations, layer));
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
