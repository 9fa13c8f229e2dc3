#include "dtopp/models/layers/feed_forward.h"

#include <string>

#include <ATen/record_function.h>

#include "dtopp/models/layers/recompute.h"
#include "dtopp/ops/gemm/linear.h"

namespace dtopp::models {

FeedForwardWeights feed_forward_weights(const config::ModelConfig& model,
                                        const config::RoutingConfig& routing, const std::string& prefix,
                                        const ParameterLookup& parameter) {
  FeedForwardWeights weights;
  if (model.is_dense()) {
    weights.dense_gate_up_GD = parameter(prefix + "gate_up_proj.weight");
    weights.dense_down_DF = parameter(prefix + "down_proj.weight");
    return weights;
  }
  if (config::has_logits(routing.method)) {
    weights.experts.router_ED = parameter(prefix + "gate.weight");
    if (routing.normalization == config::Normalization::kDynamic)
      weights.experts.router_scale = parameter(prefix + "gate.scale");
  }
  weights.experts.gate_up_EGD = parameter(prefix + "experts.gate_up_proj");
  weights.experts.down_EDF = parameter(prefix + "experts.down_proj");
  return weights;
}

at::Tensor feed_forward(const at::Tensor& x_TD, const FeedForwardWeights& weights, size_t layer,
                        const moe::Routing& routing, std::vector<ops::RouteOutput>& routed) {
  RECORD_USER_SCOPE("layer " + std::to_string(layer) + " mlp");
  if (weights.dense_down_DF.defined()) {
    const auto dense = [weights](const std::vector<at::Tensor>& x) -> std::vector<at::Tensor> {
      const auto gate_up = ops::linear(x[0], weights.dense_gate_up_GD).chunk(2, -1);
      return {ops::linear(at::silu(gate_up[0]) * gate_up[1], weights.dense_down_DF)};
    };
    return run_part(routing.recompute == config::Recompute::kLayer, dense, {x_TD})[0];
  }
  moe::ExpertLayerOutput output =
      moe::expert_layer(x_TD, weights.experts, static_cast<int64_t>(layer), routing);
  routed.push_back(std::move(output.routing));
  return output.y_TD;
}

}  // namespace dtopp::models
