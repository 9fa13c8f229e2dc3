#include "dtopp/models/language_model.h"

#include <ATen/record_function.h>

#include "dtopp/base/errors.h"
#include "dtopp/data/text/tokenizer.h"
#include "dtopp/models/batch.h"
#include "dtopp/models/costs.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/cross_entropy/linear_cross_entropy.h"
#include "dtopp/ops/norm/norm.h"

namespace dtopp::models {
namespace {

// The id from the stream's manifest, or from the tokenizer next to its tokens.
std::optional<int64_t> end_of_text_of(const data::TokenStream& stream) {
  if (const auto id = stream.end_of_text()) return id;
  const auto path = data::tokenizer_beside(stream.path());
  if (!path) return std::nullopt;
  return data::Tokenizer::load(*path).end_of_text();
}

AttentionMask mask_of(const LanguageModel& model, const Tensor& tokens_BL, Tensor offsets) {
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
  return SampleMask{L, /*causal=*/true};
}

// tokens_T and positions_T: int64.
HiddenStates masked_states(const LanguageModel& model, const Tensor& tokens_T, const Tensor& positions_T,
                           const moe::Routing& inputs, const AttentionMask& mask) {
  const config::ModelConfig& config = model.config;
  const RotaryTable rotary = rotary_table(positions_T, config);
  const bool recompute = inputs.recompute == config::Recompute::kLayer;
  const auto norm = [eps = config.norm_eps, centered = config.norm == config::NormType::kLayer](
                        const Tensor& x_TD, const Tensor& gain_D) {
    return ops::norm(x_TD, gain_D, eps, centered);
  };
  moe::Routing routing = inputs;
  routing.ids_T = tokens_T;
  HiddenStates states;
  Tensor x_TD = [&] {
    RECORD_USER_SCOPE("embedding");
    return at::embedding(model.embed_VD(), tokens_T);
  }();
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    RECORD_USER_SCOPE("layer " + std::to_string(layer));
    const LanguageModelBlock block = model.block(layer);
    // Returns x after attention, and the input of the feed-forward layer.
    const auto attend = [=](const std::vector<Tensor>& in) -> std::vector<Tensor> {
      const ops::Normed input = norm(in[0], block.input_norm_D);
      const Tensor mixed_TD = attention(input.y, block.attention, config, rotary, mask, layer);
      const ops::Normed attended = norm(input.x + mixed_TD, block.post_attention_norm_D);
      return {attended.x, attended.y};
    };
    const std::vector<Tensor> attended = run_part(recompute, attend, {x_TD});
    x_TD = attended[0] + feed_forward(attended[1], block.mlp, layer, routing, states.routing);
  }
  RECORD_USER_SCOPE("final norm");
  states.x_TD = norm(x_TD, model.parameter("model.norm.weight")).y;
  return states;
}

// A chunk on a CPU (ops/cross_entropy/linear_cross_entropy_cpu.cpp): bytes, but at least the logits of that
// many tokens.
constexpr uint64_t kCrossEntropyChunk = uint64_t{64} << 20, kFewestTokens = 256;
constexpr uint64_t kCudaLogits = uint64_t{1}
                                 << 30;  // fp32, per chunk (ops/cross_entropy/linear_cross_entropy_cuda.cpp)

// The logits of a chunk and tensors derived from them.
uint64_t logits_chunk(const BlockSizes& s, uint64_t V) {
  if (!s.cuda)
    return std::min(
        checked_product({s.T, V, 2 * kFp32Bytes}),
        std::max(kCrossEntropyChunk, checked_product({std::min(s.T, kFewestTokens), V, s.width})));
  // The gradients of the logits are separate tensors.
  const uint64_t logits = std::min(checked_product({s.T, V, kFp32Bytes}), kCudaLogits);
  return checked_sum({logits, logits / kFp32Bytes * s.width});
}

// The chunk, the weight's gradient in fp32, and the hidden states' gradient.
uint64_t cross_entropy(const BlockSizes& s, uint64_t V) {
  return checked_sum({logits_chunk(s, V), checked_product({V, s.D, kFp32Bytes}),
                      checked_product({s.T, s.D, s.cuda ? s.width : kFp32Bytes})});
}

// The bias of a window, per sample if samples have documents.
uint64_t window_bias(const BlockSizes& s, const config::ModelConfig& model) {
  const auto length = static_cast<uint64_t>(model.sequence_length);
  if (model.attention_window == 0 || model.attention_window >= model.sequence_length) return 0;
  return checked_product({model.attend_across_documents ? length : s.T, length, s.width});
}

}  // namespace

Tensor document_offsets(const Tensor& tokens_BL, int64_t end_of_text) {
  TORCH_CHECK(tokens_BL.dim() == 2 && tokens_BL.scalar_type() == at::kLong && tokens_BL.is_cpu(),
              "document_offsets: expected tokens int64 [B, L] on the CPU");
  const int64_t B = tokens_BL.size(0), L = tokens_BL.size(1);
  const auto tokens = tokens_BL.accessor<int64_t, 2>();
  std::vector<int32_t> offsets;
  for (int64_t b = 0; b < B; ++b)
    for (int64_t i = 0; i < L; ++i)
      if (i == 0 || tokens[b][i - 1] == end_of_text) offsets.push_back(static_cast<int32_t>(b * L + i));
  offsets.push_back(static_cast<int32_t>(B * L));
  return at::tensor(offsets, at::kInt);
}

std::optional<int64_t> end_of_documents(const config::RunConfig& config,
                                        const std::vector<data::TokenStream>& train,
                                        const std::vector<data::TokenStream>& validation) {
  if (config.model.attend_across_documents) return std::nullopt;
  std::optional<int64_t> found;
  if (config.data.end_of_text >= 0) found = config.data.end_of_text;
  std::string said_by = "data.end_of_text";
  for (const auto* streams : {&train, &validation}) {
    for (const data::TokenStream& stream : *streams) {
      const auto id = end_of_text_of(stream);
      if (!id) continue;
      if (found && *id != *found)
        throw UsageError(stream.path().string() + " ends documents with id " + std::to_string(*id) + ", " +
                         said_by + " with " + std::to_string(*found) +
                         "; set data.end_of_text to that of the data");
      if (!found) said_by = stream.path().string();
      found = id;
    }
  }
  if (!found)
    throw UsageError(
        "data.end_of_text: model.attend_across_documents: false needs the id that ends a document, but no "
        "data source has a tokenizer with one; set data.end_of_text");
  return found;
}

std::vector<parameters::ParameterSpec> language_model_parameters(const config::ModelConfig& model,
                                                                 const config::RoutingConfig& routing) {
  const int64_t D = model.hidden_size;
  parameters::ParameterList list(model, routing);
  list.matrix(
      "model.embed_tokens.weight", {model.vocab_size, D},
      model.tie_embeddings ? parameters::ParameterRole::kTiedLookUp : parameters::ParameterRole::kLookUp);
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    list.gain(prefix + "input_layernorm.weight", D);
    list.attention(prefix + "self_attn.");
    list.gain(prefix + "post_attention_layernorm.weight", D);
    list.feed_forward(prefix + "mlp.", layer);
  }
  list.gain("model.norm.weight", D);
  if (!model.tie_embeddings)
    list.matrix("lm_head.weight", {model.vocab_size, D}, parameters::ParameterRole::kOuterMatrix);
  return list.take();
}

LanguageModelBlock LanguageModel::block(int64_t layer) const {
  if (layer < std::ssize(blocks)) return blocks[layer];
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  LanguageModelBlock block;
  block.input_norm_D = parameter(prefix + "input_layernorm.weight");
  block.attention = attention_weights(config, prefix + "self_attn.", parameter);
  block.post_attention_norm_D = parameter(prefix + "post_attention_layernorm.weight");
  block.mlp = feed_forward_weights(config, routing, prefix + "mlp.", layer, parameter);
  return block;
}

LanguageModel bind_language_model(const config::ModelConfig& model, const config::RoutingConfig& routing,
                                  const ParameterLookup& parameter) {
  LanguageModel bound{model, routing, looked_up(language_model_parameters(model, routing), parameter)};
  for (int64_t layer = 0; layer < model.num_layers; ++layer) bound.blocks.push_back(bound.block(layer));
  return bound;
}

HiddenStates hidden_states(const LanguageModel& model, const Tensor& tokens_BL, const moe::Routing& inputs,
                           const Tensor& documents) {
  const Tensor positions_T = at::arange(tokens_BL.size(1), tokens_BL.options()).repeat({tokens_BL.size(0)});
  return masked_states(model, tokens_BL.reshape({-1}), positions_T, inputs,
                       mask_of(model, tokens_BL, documents));
}

HiddenStates segment_states(const LanguageModel& model, const Tensor& tokens_T,
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

BatchLosses language_model_losses(const LanguageModel& model, const Tensor& windows,
                                  const moe::Routing& inputs, const config::LossConfig& weights,
                                  const Tensor& documents) {
  const int64_t length = windows.size(1) - 1;
  const HiddenStates states = hidden_states(model, windows.narrow(1, 0, length), inputs, documents);
  RECORD_USER_SCOPE("loss");
  const Tensor targets_T = windows.narrow(1, 1, length).reshape({-1});
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
      const Tensor documents = model.config.attend_across_documents ? Tensor() : batch.tensor("documents");
      moe::Routing routing = inputs;
      if (batch.has("experts"))
        routing.counts_T = batch.tensor("experts").repeat_interleave(model.config.sequence_length);
      return language_model_losses(model, batch.tensor("tokens"), routing, weights, documents);
    };
  };
  return model;
}

StepCosts language_model_costs(const config::ModelConfig& model, const CostInputs& inputs) {
  const BlockSizes s = block_sizes(model, inputs);
  const auto V = static_cast<uint64_t>(model.vocab_size);
  const uint64_t ends = checked_sum({checked_product({2, s.stream()}), checked_product({s.T, 16})});
  // A tied embedding has a second gradient, from its look-up.
  const uint64_t look_up = model.tie_embeddings ? checked_product({V, s.D, s.width}) : 0;
  StepCosts costs;
  const BlockActivations block = block_activations(s, 0);
  costs.first_layer = block.stored;
  costs.recomputed = block.recomputed;
  costs.activations = checked_sum({checked_product({s.L, costs.first_layer}), ends, window_bias(s, model)});
  costs.loss = {"cross_entropy", cross_entropy(s, V)};
  costs.released = logits_chunk(s, V);
  costs.workspace = checked_sum({block_workspace(s), look_up});
  costs.attention_flops = checked_product({6, s.L, s.queries, static_cast<uint64_t>(model.sequence_length)});
  costs.recomputed_flops = recomputed_flops(s, costs.attention_flops);
  return costs;
}

}  // namespace dtopp::models
