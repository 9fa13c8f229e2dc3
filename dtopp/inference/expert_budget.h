// Solves for the thresholds at which a trained model activates another number of experts.
#pragma once

#include "dtopp/inference/inference_model.h"
#include "dtopp/models/solve_thresholds.h"

namespace dtopp::inference {
// Throws UsageError if the routing method has no threshold or cannot reach `target`, the value of `option`
// (config::reachable_experts).
void require_target(const config::RunConfig& config, double target,
                    const std::string& option = "--target-experts");

// Returns a router with the threshold p at which tokens activate `target` experts on average.
//
// If routing.scope is layer, each layer gets its own p and meets the target itself. Otherwise all layers
// share one p, and the mean over layers meets the target.
//
// Shapes:     tokens_BL int64 [B, L]
// Throws:     UsageError, as require_target; StoppedEarly within a StopScope
// Collective: if `model.routing.ranks` is set, every rank, with the same result
moe::Routing solve_thresholds(const InferenceModel& model, const Tensor& tokens_BL, double target);

// Returns the first windows of a text, int64 [B, L] with at most kSolveTokens ids, but at least one window.
// Throws DataError if `ids` is empty; the message begins with `source`, the name of the text.
Tensor solving_windows(std::span<const int64_t> ids, int64_t sequence_length, const std::string& source);

inline constexpr char kBudgetsName[] = "budgets.json";

// The thresholds at which a model activates given numbers of experts on average, kept in a file of its
// checkpoint.
struct KeptBudgets {
  std::string checkpoint;                             // Checkpoint::hash
  std::string text;                                   // hash of the ids on which they were solved
  std::map<int64_t, std::vector<double>> thresholds;  // by number of experts: p, or one per layer

  bool operator==(const KeptBudgets&) const = default;
};

// The whole numbers of experts that a model can reach (config::reachable_experts); none without a threshold.
std::vector<int64_t> whole_budgets(const config::RunConfig& config);

std::string hash_of_windows(const Tensor& windows_BL);

// Reads or writes the checkpoint's file. Reading returns nullopt if there is none, or it belongs to another
// checkpoint; it throws DataError if the file is damaged.
std::optional<KeptBudgets> read_budgets(const checkpoint::Checkpoint& checkpoint,
                                        const config::RunConfig& config);
void write_budgets(const checkpoint::Checkpoint& checkpoint, const KeptBudgets& budgets);

// The router with the thresholds of a budget.
std::shared_ptr<moe::Router> make_budget_router(const InferenceModel& model,
                                                const std::vector<double>& thresholds);

}  // namespace dtopp::inference
