// The measurements behind the paper's figures of activated experts, on any text: of each layer how many
// experts a token uses and which, and of each kind of token how many (Section "Activated Experts Distribution
// Analysis").
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "dtopp/eval/perplexity.h"
#include "dtopp/tasks/token_kinds.h"

namespace dtopp {

// Active experts of the tokens of each kind.
struct KindActivations {
  TokenKinds kinds;
  at::Tensor tokens_G;   // int64: tokens of each kind that were routed
  at::Tensor sums_GL;    // f64: their active experts in each layer
  at::Tensor squares_G;  // f64: sum over tokens and layers of the squared number
};

struct ActivationAnalysis {
  Perplexity perplexity;  // of the same pass; its `activations` hold layers and experts
  std::vector<KindActivations> by_kind;
};

// One pass over the windows of measure_perplexity, as which it is shared out among ranks. UsageError for a
// dense model; Stopped.
ActivationAnalysis analyze_activations(const InferenceModel& model, std::span<const int64_t> ids,
                                       std::vector<TokenKinds> kinds, int64_t batch_size, Collectives& ranks,
                                       const BatchHooks& hooks);

// The file that docs/evaluation.md describes.
nlohmann::ordered_json to_json(const ActivationAnalysis& analysis, const InferenceModel& model);

// Layers and kinds, a line each.
std::string format_table(const ActivationAnalysis& analysis);

}  // namespace dtopp
