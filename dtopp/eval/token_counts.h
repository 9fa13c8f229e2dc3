// Gives each token of a text another number of its own likeliest experts, to measure what a model's
// allocation of experts is worth.
//
// The numbers come from a first pass with the model's router. Their sum over tokens and layers is kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/eval/perplexity.h"

namespace dtopp::eval {

enum class CountsRule {
  kAsIs,            // the model's router
  kUniform,         // the mean over tokens and layers, rounded up or down by position
  kPermutedLayer,   // the number of another token in the same layer
  kPermutedSource,  // in the same layer and source
  kPermutedWindow,  // in the same layer and window
};
// "as-is", "uniform", "permuted:layer", "permuted:source", "permuted:window"
const std::vector<std::pair<std::string, CountsRule>>& counts_rules();

// Returns the numbers of experts by `rule`. `counts_LN` has one column per token that is read by the model;
// groups are those of the rule, each with the columns of its tokens. A seed and the columns determine the
// result.
//
// Shapes:  counts_LN int64 [L, N], on the CPU -> alike; other columns stay as they are
at::Tensor redistribute(const at::Tensor& counts_LN, CountsRule rule,
                        const std::vector<std::vector<int64_t>>& groups, uint64_t seed);

// Selects experts by given numbers.
class TokenCounts final : public BatchRouters {
 public:
  // Measures the model's own numbers on the text and redistributes them.
  //
  // Throws:     UsageError if the model is dense, has zero experts, or does not order experts by probability;
  //             Stopped if a stop is requested on any rank
  // Collective: every rank of `ranks`, in the same order
  TokenCounts(const inference::InferenceModel& model, const EvaluationText& text, CountsRule rule,
              uint64_t seed, int64_t batch_size, distributed::Collectives& ranks, inference::Watch& watch);

  std::shared_ptr<moe::Router> for_tokens(uint64_t first, int64_t count) const override;

 private:
  config::RunConfig config_;
  at::Device device_;
  at::Tensor counts_LN_;  // int64
};

}  // namespace dtopp::eval
