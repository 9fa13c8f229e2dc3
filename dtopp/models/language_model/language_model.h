// The language model: pre-norm decoder blocks with QK-norm, RoPE and a dense or Mixture-of-Experts
// feed-forward layer.
//
//   x = embed(tokens);  for each block: x += attention(norm(x));  x += moe(norm(x));  logits = norm(x)
//   W_head^T
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "dtopp/config/model_config.h"
#include "dtopp/models/batch_losses.h"
#include "dtopp/models/language_model/parameters.h"
#include "dtopp/models/layers/attention.h"
#include "dtopp/models/layers/feed_forward.h"
#include "dtopp/models/model.h"

namespace dtopp {

struct LanguageModelBlock {
  at::Tensor input_norm_D;
  AttentionWeights attention;
  at::Tensor post_attention_norm_D;
  FeedForwardWeights mlp;
};

// The model over tensors that are looked up by name (those of language_model_parameters) each time they are
// used, in the order of a forward pass.
struct LanguageModel {
  ModelConfig config;
  RoutingConfig routing;
  ParameterLookup parameter;
  // What ends a document, for model.attend_across_documents: false where nobody says where documents are.
  std::optional<int64_t> end_of_text{};

  at::Tensor embed_VD() const { return parameter("model.embed_tokens.weight"); }
  LanguageModelBlock block(int64_t layer) const;
  at::Tensor norm_D() const { return parameter("model.norm.weight"); }
  // The embedding itself when tied.
  at::Tensor head_VD() const { return config.tie_embeddings ? embed_VD() : parameter("lm_head.weight"); }
};

// The same over tensors that are looked up once, here.
LanguageModel bind_language_model(const ModelConfig& model, const RoutingConfig& routing,
                                  const ParameterLookup& parameter);

struct HiddenStates {
  at::Tensor x_TD;                   // after the final norm, T = B L
  std::vector<RouteOutput> routing;  // one a layer; none for a dense model
};

// Mixes the values of a layer's heads over positions: [T, H, K] each, the result likewise. Which token sees
// which is its choice.
using Attend = std::function<at::Tensor(size_t layer, const Heads& heads)>;

// tokens_T and positions_T int64.
HiddenStates hidden_states(const LanguageModel& model, const at::Tensor& tokens_T,
                           const at::Tensor& positions_T, const RoutingInputs& inputs, const Attend& attend);

// Sequences of equal length, each token seeing itself and those before it, with
// model.attend_across_documents: false those of its document. tokens_BL int64. documents: then
// document_offsets of them (documents.h), on their device; undefined: found by model.end_of_text, for which
// the host waits for the device.
HiddenStates hidden_states(const LanguageModel& model, const at::Tensor& tokens_BL,
                           const RoutingInputs& inputs, const at::Tensor& documents = {});

// windows int64 [B, L + 1]: each predicts its tokens 1 … L; documents: as above, of tokens 0 … L - 1. Values:
// "lm_loss", "lm_z_loss", and for MoE those of add_router_losses.
BatchLosses language_model_losses(const LanguageModel& model, const at::Tensor& windows,
                                  const RoutingInputs& inputs, const LossConfig& weights,
                                  const at::Tensor& documents = {});

StepCosts language_model_costs(const ModelConfig& model, const CostInputs& inputs);

// Batches hold "tokens", int64 [B, sequence_length + 1]: windows of the token files; and with
// model.attend_across_documents: false "documents", document_offsets of all but their last tokens.
TrainingData language_model_data(const RunConfig& config, Verify verify);

// All of the above as one record.
Model make_language_model(const RunConfig& config);

}  // namespace dtopp
