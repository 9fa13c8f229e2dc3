#include "dtopp/models/layers/feed_forward.h"

#include <string>

#include <ATen/record_function.h>

#include "dtopp/models/layers/recompute.h"
#include "dtopp/ops/gemm/linear.h"

namespace dtopp::models {

namespace {

// SwiGLU of every token, times the gate of shared experts.
at::Tensor dense_ffn(const at::Tensor& x_TD, const FeedForwardWeights& weights, config::Recompute recompute) {
  const auto ffn = [weights](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const at::Tensor& gate_1D = weights.shared_gate_1D;
    // The alias adds the gradients of both products before those of other layers, as a recomputed part does.
    const at::Tensor x = gate_1D.defined() ? at::alias(in[0]) : in[0];
    const auto gate_up = ops::linear(x, weights.dense_gate_up_GD).chunk(2, -1);
    const at::Tensor y_TD = ops::linear(at::silu(gate_up[0]) * gate_up[1], weights.dense_down_DF);
    return {gate_1D.defined() ? at::sigmoid(ops::linear(x, gate_1D)) * y_TD : y_TD};
  };
  return run_part(recompute == config::Recompute::kLayer, ffn, {x_TD})[0];
}

}  // namespace

FeedForwardWeights feed_forward_weights(const config::ModelConfig& model,
                                        const config::RoutingConfig& routing, const std::string& prefix,
                                        const ParameterLookup& parameter) {
  FeedForwardWeights weights;
  const auto look_up_dense = [&](const std::string& ffn) {
    weights.dense_gate_up_GD = parameter(ffn + "gate_up_proj.weight");
    weights.dense_down_DF = parameter(ffn + "down_proj.weight");
  };
  if (model.is_dense()) {
    look_up_dense(prefix);
    return weights;
  }
  if (config::has_logits(routing.method)) {
    weights.experts.router_ED = parameter(prefix + "gate.weight");
    if (routing.normalization == config::Normalization::kDynamic)
      weights.experts.router_scale = parameter(prefix + "gate.scale");
  }
  if (model.shared_experts > 0) look_up_dense(prefix + "shared_experts.");
  if (model.shared_gate) weights.shared_gate_1D = parameter(prefix + "shared_gate.weight");
  weights.experts.gate_up_EGD = parameter(prefix + "experts.gate_up_proj");
  weights.experts.down_EDF = parameter(prefix + "experts.down_proj");
  weights.experts.copies_input = model.zero_kind == config::ZeroKind::kCopy;
  return weights;
}

at::Tensor feed_forward(const at::Tensor& x_TD, const FeedForwardWeights& weights, size_t layer,
                        const moe::Routing& routing, std::vector<ops::RouteOutput>& routed) {
  RECORD_USER_SCOPE("layer " + std::to_string(layer) + " mlp");
  at::Tensor dense_TD;
  if (weights.dense_down_DF.defined()) dense_TD = dense_ffn(x_TD, weights, routing.recompute);
  if (!weights.experts.down_EDF.defined()) return dense_TD;
  moe::ExpertLayerOutput output =
      moe::expert_layer(x_TD, weights.experts, static_cast<int64_t>(layer), routing);
  routed.push_back(std::move(output.routing));
  return dense_TD.defined() ? output.y_TD + dense_TD : output.y_TD;
}

}  // namespace dtopp::models
