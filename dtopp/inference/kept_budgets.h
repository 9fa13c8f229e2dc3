// The thresholds at which a model activates 1, 2, … experts on average, kept in a file of its checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/inference/inference_model.h"

namespace dtopp::inference {

inline constexpr char kBudgetsName[] = "budgets.json";

struct KeptBudgets {
  std::string checkpoint;                       // Checkpoint::hash
  std::string text;                             // hash of the ids on which they were solved
  std::vector<std::vector<double>> thresholds;  // of 1, 2, … experts: p, or one per layer

  bool operator==(const KeptBudgets&) const = default;
};

// The largest budget that a model can have: routing.max_experts, or all experts. 0: it has no threshold.
int64_t largest_budget(const config::RunConfig& config);

std::string hash_of_windows(const at::Tensor& windows_BL);

// Solves for every budget from 1 to the largest (solve_thresholds in expert_budget.h).
KeptBudgets solve_budgets(const InferenceModel& model, const checkpoint::Checkpoint& checkpoint,
                          const at::Tensor& windows_BL);

// Reads or writes the checkpoint's file. Reading returns nullopt if there is none, or it belongs to another
// checkpoint; it throws DataError if the file is damaged.
std::optional<KeptBudgets> read_budgets(const checkpoint::Checkpoint& checkpoint,
                                        const config::RunConfig& config);
void write_budgets(const checkpoint::Checkpoint& checkpoint, const KeptBudgets& budgets);

// A router per budget, the first for one expert.
std::vector<std::shared_ptr<moe::Router>> make_budget_routers(const InferenceModel& model,
                                                              const KeptBudgets& budgets);

}  // namespace dtopp::inference
