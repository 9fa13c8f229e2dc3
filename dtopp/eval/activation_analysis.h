// Measures the activated experts of a text: number and load per layer, number per kind of token, and the loss
// by their number.
//
// Source: paper, Section "Activated Experts Distribution Analysis"
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "dtopp/data/text/tokenizer.h"
#include "dtopp/eval/perplexity.h"

namespace dtopp::eval {

// One classification of the tokens of a text.
struct TokenKinds {
  std::string by;                  // "frequency", "position", "part_of_word"
  std::vector<std::string> names;  // name of each kind
  std::vector<uint8_t> kind;       // per token, in the order of the text: the index of its kind
};

// Three classifications:
//
// - by how often a token's id occurs in this text (its rank among all ids);
// - by its position in a sequence of `sequence_length` tokens (powers of two); each of `begins` begins one;
// - by the part of a word that it spells: a whole word, its beginning, the rest of it, a number, punctuation,
//   white space, or nothing (<|endoftext|> and other special tokens).
std::vector<TokenKinds> find_token_kinds(std::span<const int64_t> ids, const data::Tokenizer& tokenizer,
                                         int64_t sequence_length, std::span<const uint64_t> begins = {});

inline constexpr int64_t kExpertGroups = 10;

// One entry per token that the model reads, in text order. It shows whether a model spends experts where its
// loss is high. It does not show that experts lower the loss.
struct TokenLosses {
  std::vector<int64_t> experts;  // of all layers together
  std::vector<double> nll;       // of the next token, in nats
  std::vector<int64_t> window;   // index of the token's window; windows are independent
};

// Tokens with similar numbers of experts.
struct ExpertGroup {
  int64_t least = 0, most = 0;  // experts of all layers together
  int64_t tokens = 0;
  double nll = 0;  // mean
  // The standard error of `nll` over W windows with n_w tokens whose losses sum to S_w:
  // sqrt(W / (W - 1) sum_w (S_w - nll n_w)^2) / tokens. nullopt for one window.
  std::optional<double> standard_error;
};

// Divides N values into `groups` groups of nearly equal size, in ascending order. Returns the group of each
// value. Equal values stay together, so that groups may be empty.
std::vector<int64_t> equal_groups(std::span<const int64_t> values, int64_t groups);

// Groups tokens by experts (kExpertGroups); leaves out empty groups.
std::vector<ExpertGroup> group_by_experts(const TokenLosses& tokens);

// Spearman's rank correlation of experts and nll, with mean ranks for equal values. nullopt if all experts or
// all losses are equal.
std::optional<double> spearman(const TokenLosses& tokens);

// The same within each kind of token: its source, or a tenth of the tokens by the frequency of their id.
struct LossesWithin {
  std::string by;                  // "source", "frequency"
  std::vector<std::string> names;  // of each kind
  std::vector<TokenLosses> kinds;  // likewise
};

struct NllByExperts {
  int64_t num_layers = 0;
  TokenLosses all;
  std::vector<LossesWithin> within;
};

std::string format_table(const NllByExperts& losses);

// Active experts per token, grouped by one way of dividing tokens into kinds. G kinds, L layers.
struct KindActivations {
  TokenKinds kinds;
  Tensor tokens_G;   // int64: routed tokens
  Tensor sums_GL;    // f64: sum of active experts over the tokens
  Tensor squares_G;  // f64: sum of squared active experts over tokens and layers
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
                                       std::vector<TokenKinds> kinds, int64_t batch_size,
                                       distributed::Collectives& ranks, inference::Watch& watch);

// Returns the totals, one object per layer and one per kind of token. "histogram"[n] is the number of tokens
// with n experts; "expert_load"[e] is the share of tokens that selected expert e.
nlohmann::ordered_json to_json(const ActivationAnalysis& analysis, const inference::InferenceModel& model);

// Returns a table with one line per layer and one line per kind of token.
std::string format_table(const ActivationAnalysis& analysis);

}  // namespace dtopp::eval
