// Generates text with a language model, one token per sequence and step, with a key-value cache. Sequences
// join and leave at any step (continuous batching).
//
// On a CPU, the tokens of a sequence do not depend on the other sequences: every product and sum of a token
// has the same order in any batch. In bf16 on a CPU with AMX, the last bits depend on the batch.
#pragma once

#include "dtopp/inference/inference_model.h"
#include "dtopp/inference/sequence_input.h"

namespace dtopp::inference {

// The log-probability of a token, and of the likeliest tokens in its place.
struct TokenScore {
  int32_t id = 0;
  double log_prob = 0;
  std::vector<std::pair<int32_t, double>> likeliest;
};

struct GeneratedToken {
  size_t sequence = 0;  // as add() returned it
  int32_t id = 0;
  double active_experts = 0;            // of the previous token, mean over layers; 0 for a dense model
  std::vector<double> input_experts{};  // of all tokens computed in this step; the previous token is the last
  std::vector<TokenScore> scores{};  // if wanted: in the first step of the prompt from its second token on;
                                     // then of this token
};

class Generation {
 public:
  // `model` must outlive the object.
  explicit Generation(const InferenceModel& model) : model_(model) {}
  // Adds all prompts, in order, with at most `max_tokens` of its index.
  Generation(const InferenceModel& model, std::span<const std::vector<int32_t>> prompts,
             std::span<const int64_t> max_tokens, const SamplingOptions& options);

  // Adds a sequence and returns its number: 0, 1, … Throws std::invalid_argument if the prompt is empty.
  size_t add(SequenceInput input);
  // Generates one token for every unfinished sequence. Returns the tokens in the order of their sequences;
  // none after the last.
  std::vector<GeneratedToken> step();
  // Generates no more tokens for it, until it is extended.
  void finish(size_t sequence) { sequences_.at(sequence).input.max_tokens = 0; }
  void remove(size_t sequence) { sequences_.erase(sequence); }  // the same, and frees its memory
  // Adds ids behind the tokens of a sequence and continues it by at most `max_tokens`. The cache is kept.
  void extend(size_t sequence, std::span<const int32_t> ids, int64_t max_tokens);

  // The routing of the last step: one RouteOutput per layer, for all its tokens.
  const std::vector<ops::RouteOutput>& routing() const { return routing_; }

 private:
  struct Sequence {
    size_t number = 0;
    SequenceInput input;  // max_tokens: tokens that may still be generated; 0: the sequence is finished
    models::KeyValueCache cache;
    std::vector<int32_t> coming;  // ids that are not in the cache yet
    int64_t generated = 0;
  };
  std::vector<Sequence*> unfinished();
  moe::Routing routing_of(std::span<Sequence* const> sequences) const;
  std::vector<int32_t> choose(const Tensor& x_ND, std::span<Sequence* const> sequences) const;
  void score(const Tensor& x_TD, std::span<Sequence* const> sequences,
             std::vector<GeneratedToken>& generated) const;

  const InferenceModel& model_;
  std::map<size_t, Sequence> sequences_;
  size_t added_ = 0;
  std::vector<ops::RouteOutput> routing_;
};

// Samples one id from softmax(logits / temperature), truncated to top_p, with the random number `uniform` in
// [0, 1). logits_V is f32 [V] on the host. Precondition: temperature > 0.
int32_t sample_token(const Tensor& logits_V, double temperature, double top_p, double uniform);

}  // namespace dtopp::inference
