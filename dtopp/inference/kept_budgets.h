// The thresholds at which a model activates given numbers of experts on average, kept in a file of its
// checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/inference/inference_model.h"

namespace dtopp::inference {

inline constexpr char kBudgetsName[] = "budgets.json";

struct KeptBudgets {
  std::string checkpoint;                             // Checkpoint::hash
  std::string text;                                   // hash of the ids on which they were solved
  std::map<int64_t, std::vector<double>> thresholds;  // by number of experts: p, or one per layer

  bool operator==(const KeptBudgets&) const = default;
};

// The largest budget that a model can have: routing.max_experts, or all experts. 0: it has no threshold.
int64_t largest_budget(const config::RunConfig& config);

std::string hash_of_windows(const at::Tensor& windows_BL);

// Reads or writes the checkpoint's file. Reading returns nullopt if there is none, or it belongs to another
// checkpoint; it throws DataError if the file is damaged.
std::optional<KeptBudgets> read_budgets(const checkpoint::Checkpoint& checkpoint,
                                        const config::RunConfig& config);
void write_budgets(const checkpoint::Checkpoint& checkpoint, const KeptBudgets& budgets);

// The router with the thresholds of a budget.
std::shared_ptr<moe::Router> make_budget_router(const InferenceModel& model,
                                                const std::vector<double>& thresholds);

}  // namespace dtopp::inference
