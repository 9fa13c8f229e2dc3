// Generates text with a language model, one token per prompt and step, with a key-value cache.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dtopp/inference/inference_model.h"
#include "dtopp/models/language_model/segments.h"

namespace dtopp {

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

// Receives the routing of every forward pass: one RouteOutput per layer, for all its tokens.
using ObserveRouting = std::function<void(const std::vector<RouteOutput>& layers)>;

// Continues each prompt by at most `max_tokens` of its index, all prompts in one batch.
//
// Each step generates one token for every unfinished prompt and passes the tokens to `accept` in prompt
// order. A prompt is finished once `accept` returns false. The random numbers depend only on the seed, the
// prompt's index and the position, not on the other prompts.
//
// Throws: std::invalid_argument if a prompt is empty
void generate(const InferenceModel& model, std::span<const std::vector<int32_t>> prompts,
              std::span<const int64_t> max_tokens, const SamplingOptions& options,
              const std::function<bool(const GeneratedToken&)>& accept, const ObserveRouting& observe = {});

// Samples one id from softmax(logits / temperature), truncated to top_p, with the random number `uniform` in
// [0, 1). logits_V is f32 [V].
int32_t sample_token(const at::Tensor& logits_V, double temperature, double top_p, double uniform);

}  // namespace dtopp
