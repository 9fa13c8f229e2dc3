#include "dtopp/moe/expert_layer.h"

#include <ATen/record_function.h>

#include "dtopp/ops/gemm/linear.h"
#include "dtopp/ops/moe_ffn/moe_ffn.h"
#include "dtopp/ops/route/route.h"

namespace dtopp::moe {
namespace {

// Removes the columns after the first num_experts. The gates of a token's experts then sum to less than 1 if
// it takes zero experts. An expert counts if its gate is not 0. The load-balance loss gets P over the experts
// alone, so that it moves no load to or from zero experts.
void remove_zero_experts(const RouterInput& input, config::Normalization normalization, int64_t num_experts,
                         ops::RouteOutput& output) {
  output.zero_gate_T1 =
      output.gates_TE.narrow(1, num_experts, output.gates_TE.size(1) - num_experts).sum(1, /*keepdim=*/true);
  output.gates_TE = output.gates_TE.narrow(1, 0, num_experts).contiguous();
  ops::set_counts(output.gates_TE.detach().ne(0), output);
  const Tensor s_TE = softmax_inputs(input, normalization).narrow(1, 0, num_experts);
  const auto tokens = static_cast<double>(std::max<int64_t>(s_TE.size(0), 1));
  output.mean_prob_E = at::softmax(s_TE, -1).sum(0) * (1 / tokens);
}

}  // namespace

Routing routing_by(const std::shared_ptr<Router>& router) {
  Routing routing{router};
  if (router) routing.expert_normalization = router->expert_normalization();
  return routing;
}

ops::RouteOutput route_tokens(const Tensor& x_TD, const ExpertLayerWeights& weights, int64_t layer,
                              const Routing& routing) {
  RECORD_USER_SCOPE("router");
  if (!weights.router_ED.defined())
    return routing.router->select_by_id({layer, {}, {}, routing.training, routing.ids_T});
  ExpertNormalization::Folded router{weights.router_ED, {}};
  if (routing.expert_normalization) router = routing.expert_normalization->fold(layer, weights.router_ED);
  // Everything after the logits is fp32, independent of the type of x.
  Tensor logits_TE = routing.token_by_token
                         ? ops::linear_by_row(x_TD.to(router.weight_CD.scalar_type()), router.weight_CD)
                         : ops::router_linear(x_TD, router.weight_CD);
  if (router.offset_C.defined()) logits_TE = logits_TE - router.offset_C;
  const Tensor scale =
      weights.router_scale.defined() ? weights.router_scale : at::ones({}, weights.router_ED.options());
  const RouterInput input = {layer, logits_TE, scale, routing.training, routing.ids_T};
  ops::RouteOutput output = routing.counts_T.defined()
                                ? routing.router->select_likeliest(input, routing.counts_T)
                                : routing.router->select(input);
  if (routing.training) output.logit_sums = routing.router->logit_sums(logits_TE, x_TD);
  const config::Normalization normalization = routing.router->config().normalization;
  if (routing.router->router_z_on() == config::RouterZOn::kNormalized &&
      normalization != config::Normalization::kNone)
    output.router_z = at::logsumexp(softmax_inputs(input, normalization), {-1}).square().mean();
  if (logits_TE.size(1) > routing.router->num_experts())
    remove_zero_experts(input, normalization, routing.router->num_experts(), output);
  return output;
}

ExpertLayerOutput expert_layer(const Tensor& x_TD, const ExpertLayerWeights& weights, int64_t layer,
                               const Routing& routing) {
  ExpertLayerOutput output;
  output.routing = route_tokens(x_TD, weights, layer, routing);
  const Tensor& gates_TE = output.routing.gates_TE;
  const bool recompute = routing.recompute != config::Recompute::kNone;
  if (routing.experts)
    output.y_TD =
        routing.experts->forward(layer, x_TD, gates_TE, weights.gate_up_EGD, weights.down_EDF, recompute);
  else if (routing.token_by_token)
    output.y_TD = ops::moe_ffn_by_row(x_TD, gates_TE, weights.gate_up_EGD, weights.down_EDF);
  else
    output.y_TD = ops::moe_ffn(x_TD, gates_TE, weights.gate_up_EGD, weights.down_EDF,
                               routing.capacities ? routing.capacities->capacity(layer) : 0, recompute);
  if (weights.copies_input)
    output.y_TD = output.y_TD + (x_TD * output.routing.zero_gate_T1).to(x_TD.scalar_type());
  return output;
}

Tensor load_balance_loss(const ops::RouteOutput& routing, const Tensor& share_E) {
  return (share_E * routing.mean_prob_E).sum() * static_cast<double>(share_E.numel());
}

}  // namespace dtopp::moe
