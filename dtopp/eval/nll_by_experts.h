// Relates the loss of tokens to the number of experts that they use.
//
// It shows whether a model spends experts where its loss is high. It does not show that experts lower the
// loss.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "dtopp/eval/perplexity.h"

namespace dtopp::eval {

inline constexpr int64_t kExpertGroups = 10;

// One entry per token that the model reads, in text order. N tokens.
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

// Collects a text's losses and experts on this rank; result() combines those of all ranks.
class TokenLossObserver final : public WindowObserver {
 public:
  TokenLossObserver(const EvaluationText& text, int64_t num_layers, int64_t sequence_length);

  void add(const TextWindows& windows, const models::HiddenStates& states,
           const at::Tensor& log_probs_T) override;
  // Collective: every rank, with the same result
  NllByExperts result(distributed::Collectives& ranks) const;

 private:
  const EvaluationText& text_;
  int64_t num_layers_, sequence_length_;
  at::Tensor experts_N_, nll_N_;  // f64, 0 for tokens of other ranks
};

// "spearman" and "groups" over all tokens, and "within" for each division. A "spearman" within kinds is the
// mean over its kinds, weighted by tokens.
nlohmann::ordered_json to_json(const NllByExperts& losses);
std::string format_table(const NllByExperts& losses);

}  // namespace dtopp::eval
