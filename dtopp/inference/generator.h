// Generates text with a language model, one token per prompt and step, with a key-value cache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dtopp/inference/inference_model.h"
#include "dtopp/models/language_model/language_model.h"

namespace dtopp::inference {

struct SamplingOptions {
  double temperature = 0;  // 0: greedy; a tie takes the lowest id
  double top_p = 1;        // sample from the most likely tokens whose probabilities sum to this
  uint64_t seed = 0;
};

struct GeneratedToken {
  size_t sequence = 0;  // index of its prompt
  int32_t id = 0;
  double active_experts = 0;  // of the previous token, mean over layers; 0 for a dense model
};

// Continues each prompt by at most `max_tokens` of its index, all prompts in one batch. The random numbers
// depend only on the seed, the prompt's index and the position, not on the other prompts.
class Generation {
 public:
  // `model` must outlive the object. Throws std::invalid_argument if a prompt is empty.
  Generation(const InferenceModel& model, std::span<const std::vector<int32_t>> prompts,
             std::span<const int64_t> max_tokens, const SamplingOptions& options);
  ~Generation();

  // Generates one token for every unfinished prompt. Returns the tokens in prompt order; none after the last.
  std::vector<GeneratedToken> step();
  void finish(size_t sequence);  // generates no more tokens for this prompt, until it is extended
  // Adds ids behind the tokens of a prompt and continues it by at most `max_tokens`. The cache is kept.
  void extend(size_t sequence, std::span<const int32_t> ids, int64_t max_tokens);

  // The routing of the last step: one RouteOutput per layer, for all its tokens.
  const std::vector<ops::RouteOutput>& routing() const { return routing_; }

 private:
  struct Sequence;
  std::vector<int32_t> choose(const at::Tensor& x_ND, std::span<Sequence* const> sequences) const;

  const InferenceModel& model_;
  SamplingOptions options_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<ops::RouteOutput> routing_;
};

// Samples one id from softmax(logits / temperature), truncated to top_p, with the random number `uniform` in
// [0, 1). logits_V is f32 [V] on the host. Precondition: temperature > 0.
int32_t sample_token(const at::Tensor& logits_V, double temperature, double top_p, double uniform);

}  // namespace dtopp::inference
