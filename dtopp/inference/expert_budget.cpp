#include "dtopp/inference/expert_budget.h"

#include <algorithm>

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/base/stop.h"
#include "dtopp/models/solve_thresholds.h"
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

}  // namespace

void require_target(const config::RunConfig& config, double target, const std::string& option) {
  const int64_t experts = config.model.num_experts;
  if (config.model.is_dense() || !config::has_threshold(config.routing.method))
    throw UsageError(option +
                     ": the model has no routing threshold; use one with routing.method top_p, dtop_p or "
                     "dtop_p_bias");
  const bool may_take_none = config.model.zero_experts > 0 && target > 0;
  if (!((target >= 1 || may_take_none) && target <= static_cast<double>(experts)))
    throw UsageError(option + format(" %g", target) + ": must be between 1 and the model's " +
                     std::to_string(experts) + " experts");
}

moe::Routing solve_thresholds(const InferenceModel& model, const at::Tensor& tokens_BL, double target) {
  require_target(model.config, target);
  const at::Tensor tokens = ops::to_device(tokens_BL, model.device());
  return models::solve_thresholds(
      model.config, {target}, model.device(),
      [&](const moe::Routing& routing) {
        end_if_stopped();
        return mean_experts(models::hidden_states(model.model, tokens, routing).routing);
      },
      model.routing);
}

at::Tensor solving_windows(std::span<const int64_t> ids, int64_t sequence_length, const std::string& source) {
  const auto count = static_cast<int64_t>(ids.size());
  const int64_t length = std::min(sequence_length, count);
  if (length == 0) throw DataError(source + ": holds no tokens; --target-experts needs text to solve p on");
  const int64_t windows = std::clamp<int64_t>(models::kSolveTokens / length, 1, count / length);
  return at::tensor(at::IntArrayRef(ids.data(), windows * length)).view({windows, length});
}

}  // namespace dtopp::inference
