#include "dtopp/moe/expert_layer.h"

#include "dtopp/ops/gemm/router_linear.h"
#include "dtopp/ops/moe_ffn/moe_ffn.h"

namespace dtopp::moe {

ops::RouteOutput route_tokens(const at::Tensor& x_TD, const ExpertLayerWeights& weights, int64_t layer,
                              const Routing& routing) {
  if (!weights.router_ED.defined())
    return routing.router->select({layer, {}, {}, routing.training, routing.ids_T});
  // Everything after the logits is fp32, independent of the type of x.
  const at::Tensor logits_TE = ops::router_linear(x_TD, weights.router_ED);
  const at::Tensor scale =
      weights.router_scale.defined() ? weights.router_scale : at::ones({}, weights.router_ED.options());
  const RouterInput input = {layer, logits_TE, scale, routing.training, routing.ids_T};
  ops::RouteOutput output = routing.router->select(input);
  const config::Normalization normalization = routing.router->config().normalization;
  if (routing.router->router_z_on() == config::RouterZOn::kNormalized &&
      normalization != config::Normalization::kNone)
    output.router_z = at::logsumexp(softmax_inputs(input, normalization), {-1}).square().mean();
  return output;
}

ExpertLayerOutput expert_layer(const at::Tensor& x_TD, const ExpertLayerWeights& weights, int64_t layer,
                               const Routing& routing) {
  ExpertLayerOutput output;
  output.routing = route_tokens(x_TD, weights, layer, routing);
  const at::Tensor& gates_TE = output.routing.gates_TE;
  const bool recompute = routing.recompute != config::Recompute::kNone;
  output.y_TD = routing.experts ? routing.experts->forward(layer, x_TD, gates_TE, weights.gate_up_EGD,
                                                           weights.down_EDF, recompute)
                                : ops::moe_ffn(x_TD, gates_TE, weights.gate_up_EGD, weights.down_EDF,
                                               /*capacity=*/0, recompute);
  return output;
}

RouterLosses router_losses(const ops::RouteOutput& routing, const at::Tensor& share_E) {
  const auto num_experts = static_cast<double>(share_E.numel());
  return {(share_E * routing.mean_prob_E).sum() * num_experts, routing.entropy, routing.router_z};
}

}  // namespace dtopp::moe
