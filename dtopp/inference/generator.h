// Text from a language model, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dtopp/inference/inference_model.h"
#include "dtopp/models/language_model/segments.h"

namespace dtopp {

struct SamplingOptions {
  double temperature = 0;  // 0: the likeliest token, of equal ones the lowest id
  double top_p = 1;        // only the likeliest tokens that together reach this probability
  uint64_t seed = 0;
};

struct GeneratedToken {
  size_t sequence = 0;  // index of its prompt
  int32_t id = 0;
  double active_experts = 0;  // that the token before it chose, mean over layers; 0 for a dense model
};

// What each forward pass routed, all its tokens, layer by layer.
using ObserveRouting = std::function<void(const std::vector<RouteOutput>& layers)>;

// Continues each prompt by at most max_tokens tokens, all prompts side by side: each step makes one token for
// every prompt that has not ended, and gives them to `accept` in the order of the prompts. A prompt ends with
// the token for which `accept` returns false. A prompt must have a token. What is drawn depends on the seed,
// the prompt's index and the position only, not on the other prompts.
void generate(const InferenceModel& model, std::span<const std::vector<int32_t>> prompts,
              std::span<const int64_t> max_tokens, const SamplingOptions& options,
              const std::function<bool(const GeneratedToken&)>& accept, const ObserveRouting& observe = {});

// One id drawn from softmax(logits / temperature) cut to top_p; `uniform` in [0, 1) decides. logits_V f32.
int32_t sample_token(const at::Tensor& logits_V, double temperature, double top_p, double uniform);

}  // namespace dtopp
