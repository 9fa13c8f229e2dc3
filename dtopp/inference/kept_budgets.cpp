#include "dtopp/inference/kept_budgets.h"

#include <algorithm>
#include <filesystem>
#include <span>

#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
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
    const int64_t experts = budget.integer("experts", 1, largest_budget(config));
    const auto [added, is_new] = budgets.thresholds.emplace(experts, budget.numbers("thresholds"));
    if (!is_new) budget.fail("experts", "is there twice");
    const size_t count = added->second.size();
    if (count != 1 && count != layers) budget.fail("thresholds", "needs one number, or one per layer");
    for (const double p : added->second)
      if (!(p > 0 && p < 1)) budget.fail("thresholds", "needs numbers between 0 and 1");
  }
  return budgets;
}

void write_budgets(const checkpoint::Checkpoint& checkpoint, const KeptBudgets& budgets) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& [experts, thresholds] : budgets.thresholds)
    list.push_back({{"experts", experts}, {"thresholds", thresholds}});
  const nlohmann::ordered_json file = {{"format", kFormat},
                                       {"checkpoint", budgets.checkpoint},
                                       {"text", budgets.text},
                                       {"budgets", std::move(list)}};
  write_file_atomically(path_of(checkpoint), dump_json(file, 1) + "\n");
}

std::shared_ptr<moe::Router> make_budget_router(const InferenceModel& model,
                                                const std::vector<double>& thresholds) {
  return std::make_shared<moe::TopPRouter>(model.config,
                                           at::tensor(thresholds, at::kDouble).to(model.device()),
                                           moe::centred_bias_of(model.routing.router.get()));
}

}  // namespace dtopp::inference
