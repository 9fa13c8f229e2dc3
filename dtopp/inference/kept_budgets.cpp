#include "dtopp/inference/kept_budgets.h"

#include <algorithm>
#include <filesystem>
#include <span>

#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/base/json_fields.h"
#include "dtopp/inference/expert_budget.h"
#include "dtopp/moe/expert_bias.h"
#include "dtopp/moe/routers/top_p.h"

namespace dtopp::inference {
namespace {

constexpr char kFormat[] = "dtopp budgets 1";

std::filesystem::path path_of(const checkpoint::Checkpoint& checkpoint) {
  return checkpoint.path() / kBudgetsName;
}

}  // namespace

int64_t largest_budget(const config::RunConfig& config) {
  if (config.model.is_dense() || !config::has_threshold(config.routing.method)) return 0;
  return config.routing.max_experts > 0 ? std::min(config.routing.max_experts, config.model.num_experts)
                                        : config.model.num_experts;
}

std::string hash_of_windows(const at::Tensor& windows_BL) {
  const at::Tensor ids = windows_BL.contiguous();
  return hash_bytes(
      std::as_bytes(std::span(ids.const_data_ptr<int64_t>(), static_cast<size_t>(ids.numel()))));
}

KeptBudgets solve_budgets(const InferenceModel& model, const checkpoint::Checkpoint& checkpoint,
                          const at::Tensor& windows_BL) {
  KeptBudgets budgets{checkpoint.hash(), hash_of_windows(windows_BL), {}};
  for (int64_t target = 1; target <= largest_budget(model.config); ++target) {
    const moe::Routing solved = solve_thresholds(model, windows_BL, static_cast<double>(target));
    budgets.thresholds.push_back(solved.router->metric("threshold"));
  }
  return budgets;
}

std::optional<KeptBudgets> read_budgets(const checkpoint::Checkpoint& checkpoint,
                                        const config::RunConfig& config) {
  const std::filesystem::path path = path_of(checkpoint);
  if (!std::filesystem::exists(path)) return std::nullopt;
  const JsonFields fields(read_file(path), path.string());
  if (fields.text("format") != kFormat) fields.fail("format", std::string("is not ") + kFormat);
  KeptBudgets budgets{fields.text("checkpoint"), fields.text("text"), {}};
  if (budgets.checkpoint != checkpoint.hash()) return std::nullopt;
  const auto layers = static_cast<size_t>(config.model.num_layers);
  for (const JsonFields& budget : fields.objects("budgets")) {
    budgets.thresholds.push_back(budget.numbers("thresholds"));
    const size_t count = budgets.thresholds.back().size();
    if (count != 1 && count != layers) budget.fail("thresholds", "needs one number, or one per layer");
    for (const double p : budgets.thresholds.back())
      if (!(p > 0 && p < 1)) budget.fail("thresholds", "needs numbers between 0 and 1");
  }
  if (static_cast<int64_t>(budgets.thresholds.size()) != largest_budget(config))
    fields.fail("budgets", "needs " + std::to_string(largest_budget(config)) + " of them");
  return budgets;
}

void write_budgets(const checkpoint::Checkpoint& checkpoint, const KeptBudgets& budgets) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < budgets.thresholds.size(); ++i)
    list.push_back({{"experts", i + 1}, {"thresholds", budgets.thresholds[i]}});
  const nlohmann::ordered_json file = {{"format", kFormat},
                                       {"checkpoint", budgets.checkpoint},
                                       {"text", budgets.text},
                                       {"budgets", std::move(list)}};
  write_file_atomically(path_of(checkpoint), dump_json(file, 1) + "\n");
}

std::vector<std::shared_ptr<moe::Router>> make_budget_routers(const InferenceModel& model,
                                                              const KeptBudgets& budgets) {
  const at::Tensor bias_LE = moe::centred_bias_of(model.routing.router.get());
  std::vector<std::shared_ptr<moe::Router>> routers;
  for (const std::vector<double>& thresholds : budgets.thresholds) {
    routers.push_back(std::make_shared<moe::TopPRouter>(
        model.config, at::tensor(thresholds, at::kDouble).to(model.device()), bias_LE));
  }
  return routers;
}

}  // namespace dtopp::inference
