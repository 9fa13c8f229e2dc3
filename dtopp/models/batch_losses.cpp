#include "dtopp/models/batch_losses.h"

#include <ATen/record_function.h>

namespace dtopp::models {
namespace {

// A field of all layers, with one row per layer, 0 for those without it; undefined if no layer has it.
Tensor stacked(const std::vector<ops::RouteOutput>& layers, Tensor ops::RouteOutput::*field) {
  const Tensor& last = layers.back().*field;  // the first layers may route by token id
  if (!last.defined()) return {};
  std::vector<Tensor> rows(layers.size());
  std::ranges::transform(layers, rows.begin(), field);
  for (Tensor& row : rows)
    if (!row.defined()) row = at::zeros_like(last);
  return at::stack(rows);
}

// The routers' counts of all layers, with one row per layer or one for all.
Tensor statistics_of(const std::vector<ops::RouteOutput>& layers, const moe::Router& router) {
  const Tensor rows = stacked(layers, &ops::RouteOutput::statistics);
  return !rows.defined() || router.statistics_shape()[0] == rows.size(0) ? rows
                                                                         : rows.sum(0, /*keepdim=*/true);
}

}  // namespace

Tensor num_assignments_by_sample(const std::vector<ops::RouteOutput>& layers, int64_t samples) {
  if (layers.empty()) return at::zeros({samples, 0}, at::kLong);
  std::vector<Tensor> per_layer;
  per_layer.reserve(layers.size());
  for (const ops::RouteOutput& layer : layers)
    per_layer.push_back(layer.gates_TE.ne(0).view({samples, -1}).sum(1));
  return at::stack(per_layer, 1);
}

void add_router_losses(const std::vector<ops::RouteOutput>& layers, const moe::Router* router,
                       const config::LossConfig& weights, BatchLosses& losses) {
  if (layers.empty()) return;
  RECORD_USER_SCOPE("router");
  const auto num_layers = std::ssize(layers);
  losses.activations = moe::ActivationStatistics(num_layers);
  losses.activations.add(layers);
  losses.statistics = statistics_of(layers, *router);
  losses.logit_sums = stacked(layers, &ops::RouteOutput::logit_sums);
  const auto tokens = static_cast<double>(std::max<int64_t>(losses.activations.tokens(), 1));
  std::vector<Tensor> balance, dynamic, router_z, sequence_balance;
  for (int64_t layer = router->config().hash_layers; layer < num_layers; ++layer) {
    const Tensor own_E = losses.activations.tokens_per_expert()[layer].to(at::kFloat) / tokens;
    balance.push_back(moe::load_balance_loss(layers[layer], router->share_E(layer, own_E)));
    dynamic.push_back(layers[layer].entropy);
    router_z.push_back(layers[layer].router_z);
    if (layers[layer].sequence_balance.defined()) sequence_balance.push_back(layers[layer].sequence_balance);
  }
  const auto add = [&](const char* name, double weight, const std::vector<Tensor>& per_layer) {
    const Tensor mean = at::stack(per_layer).mean();
    losses.values.emplace_back(name, mean.detach());
    if (weight != 0) losses.total = losses.total + mean * weight;
  };
  add("load_balance_loss", weights.load_balance, balance);
  if (const Tensor weight = router->load_balance_weight(); weight.defined())
    losses.total = losses.total + at::stack(balance).mean() * weight;
  add("dynamic_loss", weights.dynamic, dynamic);
  add("router_z_loss", weights.router_z, router_z);
  if (!sequence_balance.empty()) add("sequence_balance_loss", weights.sequence_balance, sequence_balance);
}

}  // namespace dtopp::models
