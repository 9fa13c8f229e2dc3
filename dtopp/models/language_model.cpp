#include "dtopp/models/language_model.h"

#include "dtopp/ops/linear.h"
#include "dtopp/ops/linear_cross_entropy.h"

namespace dtopp {
namespace {

constexpr double kLayerNormEps = 1e-5;
constexpr double kRopeBase = 10000.0;

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& gain_D) {
  return at::layer_norm(x, gain_D.sizes(), gain_D, {}, kLayerNormEps);
}

struct RotaryTable {
  at::Tensor cos_LK, sin_LK;  // f32, the two halves of K equal
};

RotaryTable rotary_table(int64_t length, int64_t head_size, const at::TensorOptions& options) {
  const auto f64 = options.dtype(at::kDouble);
  const at::Tensor frequency = at::pow(kRopeBase, at::arange(0, head_size, 2, f64).neg().div(head_size));
  const at::Tensor angle = at::arange(length, f64).unsqueeze(1) * frequency;
  const at::Tensor angle_LK = at::cat({angle, angle}, 1);
  return {angle_LK.cos().to(at::kFloat), angle_LK.sin().to(at::kFloat)};
}

// Hugging Face's rotate-half layout, in fp32, rounded once to x's type.
at::Tensor rotate(const at::Tensor& x_BHLK, const RotaryTable& table) {
  const at::Tensor x = x_BHLK.to(table.cos_LK.scalar_type());
  const auto halves = x.chunk(2, -1);
  const at::Tensor turned = at::cat({halves[1].neg(), halves[0]}, -1);
  return (x * table.cos_LK + turned * table.sin_LK).to(x_BHLK.scalar_type());
}

at::Tensor attention(const at::Tensor& x_BLD, const AttentionWeights& w, int64_t num_heads,
                     const RotaryTable& rotary) {
  const int64_t B = x_BLD.size(0);
  const int64_t L = x_BLD.size(1);
  const int64_t D = x_BLD.size(2);
  const auto heads = [&](const at::Tensor& projected) {
    return projected.view({B, L, num_heads, D / num_heads}).transpose(1, 2);
  };
  const at::Tensor q = rotate(heads(layer_norm(dtopp::linear(x_BLD, w.q_DD), w.q_norm_D)), rotary);
  const at::Tensor k = rotate(heads(layer_norm(dtopp::linear(x_BLD, w.k_DD), w.k_norm_D)), rotary);
  const at::Tensor v = heads(dtopp::linear(x_BLD, w.v_DD));
  const at::Tensor mixed = causal_attention(q, k, v);
  return dtopp::linear(mixed.transpose(1, 2).reshape({B, L, D}), w.o_DD);
}

at::Tensor dense_ffn(const at::Tensor& x, const LanguageModelBlock& block) {
  const auto gate_up = dtopp::linear(x, block.dense_gate_up_GD).chunk(2, -1);
  return dtopp::linear(at::silu(gate_up[0]) * gate_up[1], block.dense_down_DF);
}

LanguageModelBlock bind_block(const ModelConfig& model, const RoutingConfig& routing, int64_t layer,
                              const std::function<at::Tensor(const std::string&)>& parameter) {
  const auto get = [&](const std::string& name) {
    return parameter("model.layers." + std::to_string(layer) + "." + name);
  };
  LanguageModelBlock block;
  block.input_norm_D = get("input_layernorm.weight");
  block.attention = {get("self_attn.q_proj.weight"), get("self_attn.k_proj.weight"),
                     get("self_attn.v_proj.weight"), get("self_attn.o_proj.weight"),
                     get("self_attn.q_norm.weight"), get("self_attn.k_norm.weight")};
  block.post_attention_norm_D = get("post_attention_layernorm.weight");
  if (model.is_dense()) {
    block.dense_gate_up_GD = get("mlp.gate_up_proj.weight");
    block.dense_down_DF = get("mlp.down_proj.weight");
    return block;
  }
  block.experts.router_ED = get("mlp.gate.weight");
  if (routing.normalization == Normalization::kDynamic) block.experts.router_scale = get("mlp.gate.scale");
  block.experts.gate_up_EGD = get("mlp.experts.gate_up_proj");
  block.experts.down_EDF = get("mlp.experts.down_proj");
  return block;
}

}  // namespace

LanguageModel bind_language_model(const ModelConfig& model, const RoutingConfig& routing,
                                  const std::function<at::Tensor(const std::string&)>& parameter) {
  LanguageModel bound{model, routing, parameter("model.embed_tokens.weight"), {}, {}, {}};
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    bound.blocks.push_back(bind_block(model, routing, layer, parameter));
  }
  bound.norm_D = parameter("model.norm.weight");
  bound.head_VD = model.tie_embeddings ? bound.embed_VD : parameter("lm_head.weight");
  return bound;
}

HiddenStates hidden_states(const LanguageModel& model, const at::Tensor& tokens_BL,
                           const RoutingInputs& inputs) {
  const ModelConfig& config = model.config;
  const int64_t T = tokens_BL.numel();
  const RotaryTable rotary = rotary_table(tokens_BL.size(1), config.head_size(), model.embed_VD.options());
  HiddenStates states;
  at::Tensor x_BLD = at::embedding(model.embed_VD, tokens_BL);
  for (size_t layer = 0; layer < model.blocks.size(); ++layer) {
    const LanguageModelBlock& block = model.blocks[layer];
    x_BLD =
        x_BLD + attention(layer_norm(x_BLD, block.input_norm_D), block.attention, config.num_heads, rotary);
    const at::Tensor normed_BLD = layer_norm(x_BLD, block.post_attention_norm_D);
    if (config.is_dense()) {
      x_BLD = x_BLD + dense_ffn(normed_BLD, block);
      continue;
    }
    ExpertLayerOutput output = expert_layer(normed_BLD.reshape({T, config.hidden_size}), block.experts,
                                            model.routing, inputs.threshold.at(layer));
    x_BLD = x_BLD + output.y_TD.view_as(x_BLD);
    states.routing.push_back(std::move(output.routing));
  }
  states.x_TD = layer_norm(x_BLD, model.norm_D).reshape({T, config.hidden_size});
  return states;
}

BatchLosses language_model_losses(const LanguageModel& model, const at::Tensor& windows,
                                  const RoutingInputs& inputs, const LossWeights& weights) {
  const int64_t length = windows.size(1) - 1;
  const HiddenStates states = hidden_states(model, windows.narrow(1, 0, length), inputs);
  const at::Tensor targets_T = windows.narrow(1, 1, length).reshape({-1});
  const CrossEntropy lm = linear_cross_entropy(states.x_TD, model.head_VD, targets_T, weights.lm_z);

  BatchLosses losses;
  losses.total = lm.loss;
  losses.values = {{"lm_loss", lm.nll.detach()}, {"lm_z_loss", lm.z.detach()}};
  if (states.routing.empty()) return losses;

  const auto num_layers = static_cast<int64_t>(states.routing.size());
  losses.activations = ActivationStatistics(num_layers);
  std::vector<at::Tensor> balance, dynamic, router_z;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const RouteOutput& routing = states.routing[layer];
    losses.activations.add(layer, routing.expert_counts_E, routing.active_histogram);
    at::Tensor counts_E = routing.expert_counts_E;
    int64_t tokens = targets_T.numel();
    if (inputs.earlier != nullptr && inputs.earlier->expert_counts(layer).defined()) {
      counts_E = counts_E + inputs.earlier->expert_counts(layer);
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
  return losses;
}

}  // namespace dtopp
