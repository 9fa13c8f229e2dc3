#include "dtopp/models/language_model/language_model.h"

#include <memory>
#include <stdexcept>
#include <unordered_map>

#include "dtopp/models/batch.h"
#include "dtopp/models/language_model/documents.h"
#include "dtopp/ops/attention/attention.h"
#include "dtopp/ops/attention/document_attention.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/cross_entropy/linear_cross_entropy.h"
#include "dtopp/ops/gemm/linear.h"

namespace dtopp {
namespace {

// Undefined if tokens attend across documents.
at::Tensor offsets_of(const LanguageModel& model, const at::Tensor& tokens_BL, const at::Tensor& documents) {
  if (model.config.attend_across_documents || documents.defined()) return documents;
  if (!model.end_of_text)
    throw std::invalid_argument(
        "hidden_states: model.attend_across_documents: false needs document offsets or end_of_text");
  return to_device(document_offsets(tokens_BL.cpu(), *model.end_of_text), tokens_BL.device());
}

}  // namespace

LanguageModelBlock LanguageModel::block(int64_t layer) const {
  const auto get = [&](const std::string& name) {
    return parameter("model.layers." + std::to_string(layer) + "." + name);
  };
  LanguageModelBlock block;
  block.input_norm_D = get("input_layernorm.weight");
  block.attention.q_DD = get("self_attn.q_proj.weight");
  block.attention.k_DD = get("self_attn.k_proj.weight");
  block.attention.v_DD = get("self_attn.v_proj.weight");
  block.attention.q_norm_D = get("self_attn.q_norm.weight");
  block.attention.k_norm_D = get("self_attn.k_norm.weight");
  block.attention.o_DD = get("self_attn.o_proj.weight");
  block.post_attention_norm_D = get("post_attention_layernorm.weight");
  block.mlp =
      feed_forward_weights(config, routing, "model.layers." + std::to_string(layer) + ".mlp.", parameter);
  return block;
}

LanguageModel bind_language_model(const ModelConfig& model, const RoutingConfig& routing,
                                  const ParameterLookup& parameter) {
  auto tensors = std::make_shared<std::unordered_map<std::string, at::Tensor>>();
  for (const ParameterSpec& spec : language_model_parameters(model, routing))
    tensors->emplace(spec.name, parameter(spec.name));
  return {model, routing, [tensors](const std::string& name) { return tensors->at(name); }, {}};
}

HiddenStates hidden_states(const LanguageModel& model, const at::Tensor& tokens_T,
                           const at::Tensor& positions_T, const Routing& inputs, const Attend& attend) {
  const ModelConfig& config = model.config;
  const RotaryTable rotary = rotary_table(positions_T, config.head_size());
  HiddenStates states;
  at::Tensor x_TD = at::embedding(model.embed_VD(), tokens_T);
  for (size_t layer = 0; layer < static_cast<size_t>(config.num_layers); ++layer) {
    const LanguageModelBlock block = model.block(static_cast<int64_t>(layer));
    const QueryKeyValue qkv = project_qkv(norm(x_TD, block.input_norm_D, config.norm), block.attention,
                                          config.num_heads, rotary, config.norm);
    const at::Tensor mixed_TD = attend(layer, qkv).reshape(x_TD.sizes());
    x_TD = x_TD + dtopp::linear(mixed_TD, block.attention.o_DD);
    const at::Tensor normed_TD = norm(x_TD, block.post_attention_norm_D, config.norm);
    x_TD = x_TD + feed_forward(normed_TD, block.mlp, layer, inputs, states.routing);
  }
  states.x_TD = norm(x_TD, model.norm_D(), config.norm);
  return states;
}

HiddenStates hidden_states(const LanguageModel& model, const at::Tensor& tokens_BL, const Routing& inputs,
                           const at::Tensor& documents) {
  const int64_t B = tokens_BL.size(0), L = tokens_BL.size(1);
  const at::Tensor positions_T = at::arange(L, tokens_BL.options()).repeat({B});
  const at::Tensor offsets = offsets_of(model, tokens_BL, documents);
  const auto attend = [&](size_t /*layer*/, const QueryKeyValue& qkv) {
    if (offsets.defined()) return document_attention(qkv.q_THK, qkv.k_THK, qkv.v_THK, offsets, L);
    const auto split = [&](const at::Tensor& x_THK) {
      return x_THK.view({B, L, x_THK.size(1), x_THK.size(2)}).transpose(1, 2);
    };
    return self_attention(split(qkv.q_THK), split(qkv.k_THK), split(qkv.v_THK), /*causal=*/true)
        .transpose(1, 2);
  };
  return hidden_states(model, tokens_BL.reshape({-1}), positions_T, inputs, attend);
}

BatchLosses language_model_losses(const LanguageModel& model, const at::Tensor& windows,
                                  const Routing& inputs, const LossConfig& weights,
                                  const at::Tensor& documents) {
  const int64_t length = windows.size(1) - 1;
  const HiddenStates states = hidden_states(model, windows.narrow(1, 0, length), inputs, documents);
  const at::Tensor targets_T = windows.narrow(1, 1, length).reshape({-1});
  const CrossEntropy lm = linear_cross_entropy(states.x_TD, model.head_VD(), targets_T, weights.lm_z);

  BatchLosses losses;
  losses.total = lm.loss;
  losses.values = {{"lm_loss", lm.nll.detach()}, {"lm_z_loss", lm.z.detach()}};
  add_router_losses(states.routing, inputs.router.get(), weights, losses);
  return losses;
}

Model make_language_model(const RunConfig& config) {
  Model model;
  model.parameters = language_model_parameters(config.model, config.routing);
  model.num_routed_layers = config.model.is_dense() ? 0 : config.model.num_layers;
  model.tokens_per_sample = config.model.sequence_length;
  model.validation_loss = "lm_loss";
  model.bind = [config](const ParameterLookup& parameter) {
    return [model = LanguageModel{config.model, config.routing, parameter, {}}, weights = config.loss](
               const Batch& batch, const Routing& inputs) {
      const at::Tensor documents =
          model.config.attend_across_documents ? at::Tensor() : batch.tensor("documents");
      return language_model_losses(model, batch.tensor("tokens"), inputs, weights, documents);
    };
  };
  model.costs = [config](const CostInputs& inputs) { return language_model_costs(config.model, inputs); };
  model.open_data = [config](Verify verify) { return language_model_data(config, verify); };
  return model;
}

}  // namespace dtopp
