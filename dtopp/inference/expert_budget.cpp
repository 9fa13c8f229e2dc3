#include "dtopp/inference/expert_budget.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/base/stop.h"
#include "dtopp/moe/expert_bias.h"
#include "dtopp/moe/solving.h"
#include "dtopp/ops/core/host_copy.h"

namespace dtopp::inference {
namespace {

double mean_experts(const std::vector<ops::RouteOutput>& layers) {
  double sum = 0;
  for (const ops::RouteOutput& routing : layers)
    sum += static_cast<double>(routing.tokens_per_expert_E.sum().item<int64_t>()) /
           static_cast<double>(routing.gates_TE.size(0));
  return sum / static_cast<double>(layers.size());
}

constexpr char kFormat[] = "dtopp budgets 1";

fs::path path_of(const checkpoint::Checkpoint& checkpoint) { return checkpoint.path() / kBudgetsName; }

}  // namespace

void require_target(const config::RunConfig& config, double target, const std::string& option) {
  if (config.model.is_dense() || !config::has_threshold(config.routing.method))
    throw UsageError(option,
                     ": the model has no routing threshold; use one with routing.method top_p, dtop_p or "
                     "dtop_p_bias");
  const auto [least, most] = config::reachable_experts(config.routing, config.model);
  if (!(target > 0 && target >= least && target <= most))
    throw UsageError(
        option, format(" %g: must be between %g and the model's %g experts", target, least, most),
        config.routing.hash_layers == 0 ? "" : "; layers that route by token id keep their experts");
}

moe::Routing solve_thresholds(const InferenceModel& model, const Tensor& tokens_BL, double target) {
  require_target(model.config, target);
  const Tensor tokens = ops::to_device(tokens_BL, model.device());
  return models::solve_thresholds(
      model.config, {target}, model.device(),
      [&](const moe::Routing& routing) {
        end_if_stopped();
        return mean_experts(models::hidden_states(model.model, tokens, routing).routing);
      },
      model.routing);
}

Tensor solving_windows(std::span<const int64_t> ids, int64_t sequence_length, const std::string& source) {
  const auto count = std::ssize(ids);
  const int64_t length = std::min(sequence_length, count);
  if (length == 0) throw DataError(source, ": holds no tokens; --target-experts needs text to solve p on");
  const int64_t windows = std::clamp<int64_t>(models::kSolveTokens / length, 1, count / length);
  return at::tensor(at::IntArrayRef(ids.data(), windows * length)).view({windows, length});
}

std::vector<int64_t> whole_budgets(const config::RunConfig& config) {
  if (config.model.is_dense() || !config::has_threshold(config.routing.method)) return {};
  const auto [least, most] = config::reachable_experts(config.routing, config.model);
  std::vector<int64_t> budgets;
  for (auto experts = std::max<int64_t>(1, std::llround(std::ceil(least))); experts <= most; ++experts)
    budgets.push_back(experts);
  return budgets;
}

std::string hash_of_windows(const Tensor& windows_BL) {
  const Tensor ids = windows_BL.contiguous();
  return hash_bytes(
      std::as_bytes(std::span(ids.const_data_ptr<int64_t>(), static_cast<size_t>(ids.numel()))));
}

std::optional<KeptBudgets> read_budgets(const checkpoint::Checkpoint& checkpoint,
                                        const config::RunConfig& config) {
  const fs::path path = path_of(checkpoint);
  if (!fs::exists(path)) return std::nullopt;
  const JsonFields fields(read_file(path), path.string());
  if (fields.text("format") != kFormat) fields.fail("format", std::string("is not ") + kFormat);
  KeptBudgets budgets{fields.text("checkpoint"), fields.text("text"), {}};
  if (budgets.checkpoint != checkpoint.hash()) return std::nullopt;
  const auto layers = static_cast<size_t>(config.model.num_layers);
  for (const JsonFields& budget : fields.objects("budgets")) {
    const int64_t experts = budget.integer("experts", 1, config.model.num_experts);
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
  ordered_json list = ordered_json::array();
  for (const auto& [experts, thresholds] : budgets.thresholds)
    list.push_back({{"experts", experts}, {"thresholds", thresholds}});
  const ordered_json file = {{"format", kFormat},
                             {"checkpoint", budgets.checkpoint},
                             {"text", budgets.text},
                             {"budgets", std::move(list)}};
  write_file_atomically(path_of(checkpoint), dump_json(file, 1) + "\n");
}

std::shared_ptr<moe::Router> make_budget_router(const InferenceModel& model,
                                                const std::vector<double>& thresholds) {
  return std::make_shared<moe::TopPRouter>(model.config,
                                           at::tensor(thresholds, at::kDouble).to(model.device()),
                                           moe::centered_bias_of(model.routing.router.get()));
}

}  // namespace dtopp::inference
