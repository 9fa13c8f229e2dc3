#include "dtopp/models/feed_forward.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtopp/ops/gemm/linear.h"

namespace dtopp::models {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct HeldPart final : torch::CustomClassHolder {
  explicit HeldPart(BlockPart held) : part(std::move(held)) {}
  BlockPart part;
};
using HeldPartPointer = c10::intrusive_ptr<HeldPart>;

constexpr const char* kPart = "part";

struct Recomputed : torch::autograd::Function<Recomputed> {
  static variable_list forward(AutogradContext* context, const at::TensorList& inputs,
                               const HeldPartPointer& held) {
    context->save_for_backward(inputs.vec());
    context->saved_data[kPart] = c10::IValue::make_capsule(held);
    return held->part(inputs.vec());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto held = c10::static_intrusive_pointer_cast<HeldPart>(context->saved_data[kPart].toCapsule());
    variable_list inputs = context->get_saved_variables();
    for (size_t i = 0; i < inputs.size(); ++i)
      inputs[i] = inputs[i].detach().requires_grad_(context->needs_input_grad(i));
    variable_list outputs;
    {
      const at::AutoGradMode with_gradients(true);
      outputs = held->part(inputs);
    }
    torch::autograd::backward(outputs, grads);
    variable_list input_grads;
    for (const Tensor& input : inputs) input_grads.push_back(input.grad());
    input_grads.emplace_back();  // of the part
    return input_grads;
  }
};

constexpr int64_t kNumbersPerThread = 32768;

// libtorch computes most numbers with vectors, and the last ones of a thread's part one by one. Their last
// bits differ. With `token_by_token`, these functions give a token the same bits in every batch.

Tensor sigmoid(const Tensor& x, bool token_by_token) {
  return token_by_token ? at::sigmoid(x.to(at::kDouble)).to(x.scalar_type()) : at::sigmoid(x);
}

// silu(gate) * up. With `token_by_token`, a thread's part consists of whole rows, and there are no gradients.
Tensor swiglu(const Tensor& gate_up_TG, bool token_by_token) {
  const auto parts = gate_up_TG.chunk(2, -1);
  const Tensor &gate_TF = parts[0], &up_TF = parts[1];
  if (!gate_TF.is_cpu() || !token_by_token) return at::silu(gate_TF) * up_TF;
  Tensor y_TF = at::empty(gate_TF.sizes(), gate_TF.options());
  const int64_t grain = std::max<int64_t>(kNumbersPerThread / std::max<int64_t>(gate_TF.size(1), 1), 1);
  at::parallel_for(0, gate_TF.size(0), grain, [&](int64_t begin, int64_t end) {
    const c10::InferenceMode mode(y_TF.is_inference());  // that of the caller, which a thread does not have
    const at::NoGradGuard no_grad;
    y_TF.slice(0, begin, end).copy_(at::silu(gate_TF.slice(0, begin, end)) * up_TF.slice(0, begin, end));
  });
  return y_TF;
}

// SwiGLU of every token, times the gate of shared experts.
Tensor dense_ffn(const Tensor& x_TD, const FeedForwardWeights& weights, const moe::Routing& routing) {
  const auto ffn = [weights, token_by_token = routing.token_by_token](
                       const std::vector<Tensor>& in) -> std::vector<Tensor> {
    const Tensor& gate_1D = weights.shared_gate_1D;
    // The alias adds the gradients of both products before those of other layers, as a recomputed part does.
    const Tensor x = gate_1D.defined() ? at::alias(in[0]) : in[0];
    const auto linear = [=](const Tensor& rows, const Tensor& weight) {
      return token_by_token ? ops::linear_by_row(rows, weight) : ops::linear(rows, weight);
    };
    const Tensor y_TD =
        linear(swiglu(linear(x, weights.dense_gate_up_GD), token_by_token), weights.dense_down_DF);
    return {gate_1D.defined() ? sigmoid(linear(x, gate_1D), token_by_token) * y_TD : y_TD};
  };
  return run_part(routing.recompute == config::Recompute::kLayer, ffn, {x_TD})[0];
}

}  // namespace

std::vector<Tensor> run_part(bool recompute, const BlockPart& part, const std::vector<Tensor>& inputs) {
  const bool stores = at::GradMode::is_enabled() && std::ranges::any_of(inputs, &Tensor::requires_grad);
  if (!recompute || !stores) return part(inputs);
  return Recomputed::apply(at::TensorList(inputs), c10::make_intrusive<HeldPart>(part));
}

FeedForwardWeights feed_forward_weights(const config::ModelConfig& model,
                                        const config::RoutingConfig& routing, const std::string& prefix,
                                        int64_t layer, const ParameterLookup& parameter) {
  FeedForwardWeights weights;
  const auto look_up_dense = [&](const std::string& ffn) {
    weights.dense_gate_up_GD = parameter(ffn + "gate_up_proj.weight");
    weights.dense_down_DF = parameter(ffn + "down_proj.weight");
  };
  if (model.is_dense()) {
    look_up_dense(prefix);
    return weights;
  }
  if (config::has_router(routing, layer)) {
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

Tensor feed_forward(const Tensor& x_TD, const FeedForwardWeights& weights, int64_t layer,
                    const moe::Routing& routing, std::vector<ops::RouteOutput>& routed) {
  RECORD_USER_SCOPE("layer " + std::to_string(layer) + " mlp");
  Tensor dense_TD;
  if (weights.dense_down_DF.defined()) dense_TD = dense_ffn(x_TD, weights, routing);
  if (!weights.experts.down_EDF.defined()) return dense_TD;
  moe::ExpertLayerOutput output = moe::expert_layer(x_TD, weights.experts, layer, routing);
  routed.push_back(std::move(output.routing));
  return dense_TD.defined() ? output.y_TD + dense_TD : output.y_TD;
}

}  // namespace dtopp::models
