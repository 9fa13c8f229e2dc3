// Measures the activated experts of a text: number and load per layer, number per kind of token, and the loss
// by their number.
//
// Source: paper, Section "Activated Experts Distribution Analysis"
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "dtopp/eval/nll_by_experts.h"
#include "dtopp/eval/perplexity.h"
#include "dtopp/tasks/token_kinds.h"

namespace dtopp::eval {

// Active experts per token, grouped by one way of dividing tokens into kinds. G kinds, L layers.
struct KindActivations {
  tasks::TokenKinds kinds;
  at::Tensor tokens_G;   // int64: routed tokens
  at::Tensor sums_GL;    // f64: sum of active experts over the tokens
  at::Tensor squares_G;  // f64: sum of squared active experts over tokens and layers
};

struct ActivationAnalysis {
  Perplexity perplexity;  // from the same pass; its `activations` hold the numbers per layer and expert
  std::vector<KindActivations> by_kind;
  NllByExperts nll_by_experts;
};

// Analyzes the text in one pass, with the windows and the distribution over ranks of measure_perplexity.
//
// Throws:     UsageError if the model is dense; Stopped if a stop is requested on any rank
// Collective: every rank of `ranks`, in the same order
ActivationAnalysis analyze_activations(const inference::InferenceModel& model, const EvaluationText& text,
                                       std::vector<tasks::TokenKinds> kinds, int64_t batch_size,
                                       distributed::Collectives& ranks, inference::Watch& watch);

// Returns the totals, one object per layer and one per kind of token. "histogram"[n] is the number of tokens
// with n experts; "expert_load"[e] is the share of tokens that selected expert e.
nlohmann::ordered_json to_json(const ActivationAnalysis& analysis, const inference::InferenceModel& model);

// Returns a table with one line per layer and one line per kind of token.
std::string format_table(const ActivationAnalysis& analysis);

}  // namespace dtopp::eval
