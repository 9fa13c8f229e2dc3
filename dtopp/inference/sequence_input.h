// A sequence to generate: its prompt, how tokens are sampled, and what is returned with them. Without torch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace dtopp::moe {
class Router;
}

namespace dtopp::inference {

struct SamplingOptions {
  double temperature = 0;  // 0: greedy; a tie takes the lowest id
  double top_p = 1;        // sample from the most likely tokens whose probabilities sum to this
  uint64_t seed = 0;
};

struct SequenceInput {
  std::vector<int32_t> ids;  // the prompt, at least one token
  int64_t max_tokens = 0;    // new tokens
  SamplingOptions sampling{};
  uint64_t index = 0;                     // selects the random numbers of a seed, as a prompt's index
  std::shared_ptr<moe::Router> router{};  // null: the model's
  int64_t budget = 0;                     // if not 0, the Scheduler sets the router that it has for it
  std::optional<int64_t> likeliest{};     // scores each token, with this many of the likeliest ones
  bool scores_prompt = false;             // also scores the prompt
};

}  // namespace dtopp::inference
