// Implements the language model: pre-norm decoder blocks with QK-norm, RoPE and a dense or Mixture-of-Experts
// feed-forward layer.
//
//   x = embed(tokens)
//   for each block:  x += attention(norm(x));  x += moe(norm(x))
//   logits = norm(x) W_head^T
#pragma once

#include "dtopp/config/model_config.h"
#include "dtopp/config/routing_config.h"
#include "dtopp/config/run_config.h"
#include "dtopp/data/text/token_file.h"
#include "dtopp/models/attention.h"
#include "dtopp/models/batch_losses.h"
#include "dtopp/models/feed_forward.h"
#include "dtopp/models/model.h"
#include "dtopp/parameters/parameters.h"

namespace dtopp::models {

// Offsets of documents in the concatenated sequences, followed by B L: int32 [n + 1]. A document ends with
// `end_of_text` or with its sequence. tokens_BL: int64 on the CPU.
Tensor document_offsets(const Tensor& tokens_BL, int64_t end_of_text);

// The token id that ends a document if tokens attend only within their document: data.end_of_text, or the id
// from the data's tokenizer. nullopt if tokens attend across documents. Throws UsageError if the id is
// unknown or ambiguous.
std::optional<int64_t> end_of_documents(const config::RunConfig& config,
                                        const std::vector<data::TokenStream>& train,
                                        const std::vector<data::TokenStream>& validation);

// The parameters in the order of the forward pass.
std::vector<parameters::ParameterSpec> language_model_parameters(const config::ModelConfig& model,
                                                                 const config::RoutingConfig& routing);

struct LanguageModelBlock {
  Tensor input_norm_D;
  AttentionWeights attention;
  Tensor post_attention_norm_D;
  FeedForwardWeights mlp;
};

// The model over tensors that are looked up by name (language_model_parameters) at each use, in the order of
// the forward pass.
struct LanguageModel {
  config::ModelConfig config;
  config::RoutingConfig routing;
  ParameterLookup parameter;
  // The id that ends a document. Required for model.attend_across_documents: false if no document offsets are
  // given.
  std::optional<int64_t> end_of_text{};
  std::vector<LanguageModelBlock> blocks{};  // if all tensors were looked up before (bind_language_model)

  Tensor embed_VD() const { return parameter("model.embed_tokens.weight"); }
  LanguageModelBlock block(int64_t layer) const;
  // The embedding if it is tied.
  Tensor head_VD() const { return config.tie_embeddings ? embed_VD() : parameter("lm_head.weight"); }
};

// The same with all tensors looked up now.
LanguageModel bind_language_model(const config::ModelConfig& model, const config::RoutingConfig& routing,
                                  const ParameterLookup& parameter);

struct HiddenStates {
  Tensor x_TD;                            // after the final norm, T = B L
  std::vector<ops::RouteOutput> routing;  // per layer; empty for a dense model
};

// Runs the model over sequences of equal length with causal attention, within documents if
// model.attend_across_documents is false and within model.attention_window tokens if it is not 0. tokens_BL:
// int64. documents: document_offsets on the tokens' device. If it is undefined, it is computed
// with model.end_of_text, which makes the host wait for the device.
HiddenStates hidden_states(const LanguageModel& model, const Tensor& tokens_BL, const moe::Routing& inputs,
                           const Tensor& documents = {});

// The same without gradients over segments (models/attention.h). tokens_T: int64, T the sum of the
// segments' lengths. Throws std::invalid_argument if the segments are inconsistent.
HiddenStates segment_states(const LanguageModel& model, const Tensor& tokens_T,
                            std::span<const Segment> segments, const moe::Routing& inputs);

// windows: int64 [B, L + 1]; tokens 0 to L - 1 predict tokens 1 to L. documents: as above, for tokens 0 to L
// - 1. Values: "lm_loss", "lm_z_loss", and with experts those of add_router_losses.
BatchLosses language_model_losses(const LanguageModel& model, const Tensor& windows,
                                  const moe::Routing& inputs, const config::LossConfig& weights,
                                  const Tensor& documents = {});

StepCosts language_model_costs(const config::ModelConfig& model, const CostInputs& inputs);

// Batches hold "tokens", int64 [B, sequence_length + 1], from the token files. With
// model.attend_across_documents: false they also hold "documents", the document_offsets of all tokens but the
// last of each sequence.
TrainingData language_model_data(const config::RunConfig& config, data::Verify verify);

Model make_language_model(const config::RunConfig& config);

}  // namespace dtopp::models
