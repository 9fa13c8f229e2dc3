#include "dtopp/moe/expert_layer.h"

#include "dtopp/base/enum_name.h"
#include "dtopp/ops/gemm/router_linear.h"
#include "dtopp/ops/moe_ffn/moe_ffn.h"
#include "dtopp/ops/route/cumulative_prob_histogram.h"
#include "dtopp/ops/route/route_selected.h"

namespace dtopp {
namespace {

// Mean squared logsumexp of the softmax inputs. Gradients pass through mean and sigma.
at::Tensor normalized_router_z(const at::Tensor& logits_TE, const at::Tensor& scale,
                               Normalization normalization) {
  const at::Tensor centred_TE = logits_TE - logits_TE.mean({-1}, /*keepdim=*/true);
  const at::Tensor variance_T1 = centred_TE.square().mean({-1}, /*keepdim=*/true);
  at::Tensor s_TE = centred_TE * (variance_T1 + kVarianceEpsilon).rsqrt();
  if (normalization == Normalization::kDynamic) s_TE = s_TE * scale;
  return at::logsumexp(s_TE, {-1}).square().mean();
}

}  // namespace

RouteOutput route_tokens(const at::Tensor& x_TD, const ExpertLayerWeights& weights,
                         const RoutingConfig& config, const at::Tensor& threshold,
                         const RouterOptions& options) {
  // Everything after the logits is fp32, independent of the type of x.
  const at::Tensor logits_TE = router_linear(x_TD, weights.router_ED);
  const at::Tensor scale =
      weights.router_scale.defined() ? weights.router_scale : at::ones({}, weights.router_ED.options());
  const std::string normalization = enum_name(config.normalization);
  RouteOutput routing =
      options.routing_map_TE.defined()
          ? route_selected(logits_TE, scale, options.routing_map_TE, normalization, config.renormalize)
          : route(logits_TE, scale, threshold, normalization,
                  config.method == RoutingMethod::kTopK ? top_k_of(config) : 0, config.max_experts,
                  config.renormalize);
  if (options.sampling.stride > 0)
    routing.prob_histogram_M = cumulative_prob_histogram(logits_TE.detach(), scale.detach(), normalization,
                                                         config.max_experts, options.sampling.stride);
  if (options.router_z_on == RouterZOn::kNormalized && config.normalization != Normalization::kNone)
    routing.router_z = normalized_router_z(logits_TE, scale, config.normalization);
  return routing;
}

ExpertLayerOutput expert_layer(const at::Tensor& x_TD, const ExpertLayerWeights& weights,
                               const RoutingConfig& config, const at::Tensor& threshold,
                               const ExpertLayerOptions& options) {
  ExpertLayerOutput output;
  output.routing = route_tokens(x_TD, weights, config, threshold, options.router);
  const ExpertBackend& experts = options.experts ? options.experts : ExpertBackend(moe_ffn);
  output.y_TD =
      experts(x_TD, output.routing.gates_TE, weights.gate_up_EGD, weights.down_EDF, options.capacity);
  return output;
}

RouterLosses router_losses(const RouteOutput& routing, const at::Tensor& share_E) {
  const auto num_experts = static_cast<double>(share_E.numel());
  return {(share_E * routing.mean_prob_E).sum() * num_experts, routing.entropy, routing.router_z};
}

}  // namespace dtopp
