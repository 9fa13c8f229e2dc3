#include "dtopp/models/language_model/language_model.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include <ATen/record_function.h>

#include "dtopp/models/batch.h"
#include "dtopp/models/language_model/documents.h"
#include "dtopp/models/layers/recompute.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/cross_entropy/linear_cross_entropy.h"
#include "dtopp/ops/norm/norm.h"

namespace dtopp::models {
namespace {

AttentionMask mask_of(const LanguageModel& model, const at::Tensor& tokens_BL, at::Tensor offsets) {
  const config::ModelConfig& config = model.config;
  const int64_t B = tokens_BL.size(0), L = tokens_BL.size(1);
  if (!config.attend_across_documents && !offsets.defined()) {
    if (!model.end_of_text)
      throw std::invalid_argument(
          "hidden_states: model.attend_across_documents: false needs document offsets or end_of_text");
    offsets = ops::to_device(document_offsets(tokens_BL.cpu(), *model.end_of_text), tokens_BL.device());
  }
  if (config.attention_window > 0 && config.attention_window < L)
    return window_mask(B, L, config.attention_window, offsets, model.embed_VD().options());
  if (offsets.defined()) return DocumentMask{offsets, L};
  return CausalMask{L};
}

// tokens_T and positions_T: int64.
HiddenStates masked_states(const LanguageModel& model, const at::Tensor& tokens_T,
                           const at::Tensor& positions_T, const moe::Routing& inputs,
                           const AttentionMask& mask) {
  const config::ModelConfig& config = model.config;
  const RotaryTable rotary = rotary_table(positions_T, config);
  const bool recompute = inputs.recompute == config::Recompute::kLayer;
  const auto norm = [eps = config.norm_eps, centred = config.norm == config::NormType::kLayer](
                        const at::Tensor& x_TD, const at::Tensor& gain_D) {
    return ops::norm(x_TD, gain_D, eps, centred);
  };
  moe::Routing routing = inputs;
  routing.ids_T = tokens_T;
  HiddenStates states;
  at::Tensor x_TD = [&] {
    RECORD_USER_SCOPE("embedding");
    return at::embedding(model.embed_VD(), tokens_T);
  }();
  for (size_t layer = 0; layer < static_cast<size_t>(config.num_layers); ++layer) {
    RECORD_USER_SCOPE("layer " + std::to_string(layer));
    const LanguageModelBlock block = model.block(static_cast<int64_t>(layer));
    // Returns x after attention, and the input of the feed-forward layer.
    const auto attend = [=](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
      const ops::Normed input = norm(in[0], block.input_norm_D);
      const at::Tensor mixed_TD = attention(input.y, block.attention, config, rotary, mask, layer);
      const ops::Normed attended = norm(input.x + mixed_TD, block.post_attention_norm_D);
      return {attended.x, attended.y};
    };
    const std::vector<at::Tensor> attended = run_part(recompute, attend, {x_TD});
    x_TD = attended[0] + feed_forward(attended[1], block.mlp, layer, routing, states.routing);
  }
  RECORD_USER_SCOPE("final norm");
  states.x_TD = norm(x_TD, model.norm_D()).y;
  return states;
}

}  // namespace

LanguageModelBlock LanguageModel::block(int64_t layer) const {
  if (layer < static_cast<int64_t>(blocks.size())) return blocks[static_cast<size_t>(layer)];
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  LanguageModelBlock block;
  block.input_norm_D = parameter(prefix + "input_layernorm.weight");
  block.attention = attention_weights(config, prefix + "self_attn.", parameter);
  block.post_attention_norm_D = parameter(prefix + "post_attention_layernorm.weight");
  block.mlp = feed_forward_weights(config, routing, prefix + "mlp.", parameter);
  return block;
}

LanguageModel bind_language_model(const config::ModelConfig& model, const config::RoutingConfig& routing,
                                  const ParameterLookup& parameter) {
  auto tensors = std::make_shared<std::unordered_map<std::string, at::Tensor>>();
  for (const parameters::ParameterSpec& spec : language_model_parameters(model, routing))
    tensors->emplace(spec.name, parameter(spec.name));
  LanguageModel bound{model, routing, [tensors](const std::string& name) { return tensors->at(name); }};
  for (int64_t layer = 0; layer < model.num_layers; ++layer) bound.blocks.push_back(bound.block(layer));
  return bound;
}

HiddenStates hidden_states(const LanguageModel& model, const at::Tensor& tokens_BL,
                           const moe::Routing& inputs, const at::Tensor& documents) {
  const at::Tensor positions_T =
      at::arange(tokens_BL.size(1), tokens_BL.options()).repeat({tokens_BL.size(0)});
  return masked_states(model, tokens_BL.reshape({-1}), positions_T, inputs,
                       mask_of(model, tokens_BL, documents));
}

HiddenStates segment_states(const LanguageModel& model, const at::Tensor& tokens_T,
                            std::span<const Segment> segments, const moe::Routing& inputs) {
  const at::NoGradGuard no_grad;
  const bool by_document = !model.config.attend_across_documents;
  if (by_document && !model.end_of_text)
    throw std::invalid_argument("segment_states: model.attend_across_documents: false needs end_of_text");
  SegmentMask mask(tokens_T, segments, by_document ? model.end_of_text : std::nullopt,
                   model.config.attention_window);
  HiddenStates states = masked_states(model, tokens_T, mask.positions_T(), inputs, &mask);
  mask.extend_caches();
  return states;
}

BatchLosses language_model_losses(const LanguageModel& model, const at::Tensor& windows,
                                  const moe::Routing& inputs, const config::LossConfig& weights,
                                  const at::Tensor& documents) {
  const int64_t length = windows.size(1) - 1;
  const HiddenStates states = hidden_states(model, windows.narrow(1, 0, length), inputs, documents);
  RECORD_USER_SCOPE("loss");
  const at::Tensor targets_T = windows.narrow(1, 1, length).reshape({-1});
  const ops::CrossEntropy lm =
      ops::linear_cross_entropy(states.x_TD, model.head_VD(), targets_T, weights.lm_z);

  BatchLosses losses;
  losses.total = lm.loss;
  losses.values = {{"lm_loss", lm.nll.detach()}, {"lm_z_loss", lm.z.detach()}};
  add_router_losses(states.routing, inputs.router.get(), weights, losses);
  return losses;
}

Model make_language_model(const config::RunConfig& config) {
  Model model;
  model.parameters = language_model_parameters(config.model, config.routing);
  model.num_routed_layers = config.model.is_dense() ? 0 : config.model.num_layers;
  model.tokens_per_sample = config.model.sequence_length;
  model.validation_loss = "lm_loss";
  model.bind = [config](const ParameterLookup& parameter) {
    return [model = LanguageModel{config.model, config.routing, parameter, {}}, weights = config.loss](
               const Batch& batch, const moe::Routing& inputs) {
      const at::Tensor documents =
          model.config.attend_across_documents ? at::Tensor() : batch.tensor("documents");
      moe::Routing routing = inputs;
      if (batch.has("experts"))
        routing.counts_T = batch.tensor("experts").repeat_interleave(model.config.sequence_length);
      return language_model_losses(model, batch.tensor("tokens"), routing, weights, documents);
    };
  };
  return model;
}

}  // namespace dtopp::models
