// Gives each token of a text another number of its own likeliest experts, to measure what a model's
// allocation of experts is worth.
//
// The numbers come from a first pass with the model's router. Their sum over tokens and layers is kept.
#pragma once

#include "dtopp/base/safetensors.h"
#include "dtopp/eval/perplexity.h"

namespace dtopp::eval {
enum class CountsRule {
  kAsIs,            // the model's router
  kUniform,         // the mean over tokens and layers, rounded up or down by position
  kPermutedLayer,   // the number of another token in the same layer
  kPermutedSource,  // in the same layer and source
  kPermutedWindow,  // in the same layer and window
};
constexpr auto enum_names(CountsRule) {
  return std::to_array<std::string_view>(
      {"as-is", "uniform", "permuted:layer", "permuted:source", "permuted:window"});
}

// Returns the numbers of experts by `rule`. `counts_LN` has one column per token that is read by the model;
// groups are those of the rule, each with the columns of its tokens. A seed and the columns determine the
// result.
//
// Shapes:  counts_LN int64 [L, N], on the CPU -> alike; other columns stay as they are
Tensor redistribute(const Tensor& counts_LN, CountsRule rule, const std::vector<std::vector<int64_t>>& groups,
                    uint64_t seed);

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
  Tensor counts_LN_;  // int64
};

// Stores the experts that each token of a text used in a safetensors file, and replays them on a model.
//
// The file holds one tensor per layer: "layer_00", "layer_01", …, bool [T, E]. T counts the tokens that the
// model reads, in text order. The replaying model may differ from the recorded one.

// Collects the experts that a model selects. It keeps one byte per token, expert and layer in memory. Run
// measure_perplexity on one rank: other ranks' batches would be missing.
class RoutingDump final : public WindowObserver {
 public:
  // `num_tokens` is T. Throws UsageError if the model is dense.
  RoutingDump(const inference::InferenceModel& model, int64_t num_tokens);

  void add(const TextWindows& windows, const models::HiddenStates& states,
           const Tensor& log_probs_T) override;
  // Throws DataError if the file cannot be written.
  void write(const fs::path& path) const;

 private:
  std::vector<Tensor> routing_map_LTE_;  // one tensor per layer, on the CPU
};

// The experts of a file, for measure_perplexity.
class RoutingReplay final : public BatchRouters {
 public:
  // Throws UsageError if the model is dense or a layer's tensor does not match the model and `num_tokens`;
  // the message names the layer. Throws DataError if the file is damaged.
  RoutingReplay(const fs::path& path, const inference::InferenceModel& model, int64_t num_tokens);

  std::shared_ptr<moe::Router> for_tokens(uint64_t first, int64_t count) const override;

 private:
  SafetensorsFile file_;
  config::RunConfig config_;
  at::Device device_;
  std::vector<const TensorView*> layers_;
};

}  // namespace dtopp::eval
