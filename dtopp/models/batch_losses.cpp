#include "dtopp/models/batch_losses.h"

#include <algorithm>

#include <ATen/record_function.h>

namespace dtopp::models {
namespace {

at::Tensor logit_sums_of(const std::vector<ops::RouteOutput>& layers) {
  if (!layers[0].logit_sums.defined()) return {};
  std::vector<at::Tensor> rows;
  for (const ops::RouteOutput& layer : layers) rows.push_back(layer.logit_sums);
  return at::stack(rows);
}

// The routers' counts of all layers, with one row per layer or one for all.
at::Tensor statistics_of(const std::vector<ops::RouteOutput>& layers, const moe::Router& router) {
  if (!layers[0].statistics.defined()) return {};
  std::vector<at::Tensor> rows;
  for (const ops::RouteOutput& layer : layers) rows.push_back(layer.statistics);
  const at::Tensor stacked = at::stack(rows);
  return router.statistics_shape()[0] == stacked.size(0) ? stacked : stacked.sum(0, /*keepdim=*/true);
}

}  // namespace

at::Tensor num_assignments_by_sample(const std::vector<ops::RouteOutput>& layers, int64_t samples) {
  if (layers.empty()) return at::zeros({samples, 0}, at::kLong);
  std::vector<at::Tensor> per_layer;
  for (const ops::RouteOutput& layer : layers)
    per_layer.push_back(layer.gates_TE.ne(0).view({samples, -1}).sum(1));
  return at::stack(per_layer, 1);
}

void add_router_losses(const std::vector<ops::RouteOutput>& layers, const moe::Router* router,
                       const config::LossConfig& weights, BatchLosses& losses) {
  if (layers.empty()) return;
  RECORD_USER_SCOPE("router");
  const auto num_layers = static_cast<int64_t>(layers.size());
  losses.activations = moe::ActivationStatistics(num_layers);
  losses.activations.add(layers);
  losses.statistics = statistics_of(layers, *router);
  losses.logit_sums = logit_sums_of(layers);
  const auto tokens = static_cast<double>(std::max<int64_t>(losses.activations.tokens(), 1));
  std::vector<at::Tensor> balance, dynamic, router_z, sequence_balance;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const at::Tensor own_E = losses.activations.tokens_per_expert()[layer].to(at::kFloat) / tokens;
    moe::RouterLosses one = moe::router_losses(layers[layer], router->share_E(layer, own_E));
    balance.push_back(std::move(one.load_balance));
    dynamic.push_back(std::move(one.dynamic));
    router_z.push_back(std::move(one.router_z));
    if (layers[layer].sequence_balance.defined()) sequence_balance.push_back(layers[layer].sequence_balance);
  }
  const auto add = [&](const char* name, double weight, const std::vector<at::Tensor>& per_layer) {
    const at::Tensor mean = at::stack(per_layer).mean();
    losses.values.emplace_back(name, mean.detach());
    if (weight != 0) losses.total = losses.total + mean * weight;
  };
  add("load_balance_loss", weights.load_balance, balance);
  if (const at::Tensor weight = router->load_balance_weight(); weight.defined())
    losses.total = losses.total + at::stack(balance).mean() * weight;
  add("dynamic_loss", weights.dynamic, dynamic);
  add("router_z_loss", weights.router_z, router_z);
  if (!sequence_balance.empty()) add("sequence_balance_loss", weights.sequence_balance, sequence_balance);
}

}  // namespace dtopp::models
