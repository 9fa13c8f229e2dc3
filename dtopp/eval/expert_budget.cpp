#include "dtopp/eval/expert_budget.h"

#include <algorithm>
#include <cmath>

#include "dtopp/base/errors.h"
#include "dtopp/moe/threshold_controller.h"
#include "dtopp/ops/host_copy.h"

namespace dtopp {
namespace {

constexpr int kHalvings = 40;            // p to 1e-12
constexpr double kCloseEnough = 1.0e-4;  // of the target

// The p at which count(p), which grows with p, reaches the target.
template <typename Count>
double bisect(double target, const Count& count) {
  double low = kMinThreshold, high = kMaxThreshold;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = low + (high - low) / 2;
    const double experts = count(middle);
    if (std::abs(experts - target) <= kCloseEnough * target) return middle;
    (experts < target ? low : high) = middle;
  }
  return low + (high - low) / 2;
}

double mean_experts(const RouteOutput& routing) {
  const auto tokens = static_cast<double>(routing.gates_TE.size(0));
  return static_cast<double>(routing.expert_counts_E.sum().item<int64_t>()) / tokens;
}

at::Tensor as_threshold(double p, const InferenceModel& model) {
  return at::full({}, p, at::device(model.device()).dtype(at::kDouble));
}

// A layer's input depends on the p of the layers below it, so one forward pass solves layer after layer.
RoutingInputs solve_by_layer(const InferenceModel& model, const at::Tensor& tokens_BL, double target) {
  RoutingInputs solved, inputs;
  inputs.choose_threshold = [&](size_t /*layer*/, const at::Tensor& x_TD, const ExpertLayerWeights& weights) {
    const double p = bisect(target, [&](double candidate) {
      return mean_experts(route_tokens(x_TD, weights, model.model.routing, as_threshold(candidate, model)));
    });
    solved.threshold.push_back(as_threshold(p, model));
    return solved.threshold.back();
  };
  hidden_states(model.model, tokens_BL, inputs);
  return solved;
}

RoutingInputs solve_globally(const InferenceModel& model, const at::Tensor& tokens_BL, double target) {
  const auto layers = static_cast<size_t>(model.model.config.num_layers);
  const auto inputs_at = [&](double p) {
    RoutingInputs inputs;
    inputs.threshold.assign(layers, as_threshold(p, model));
    return inputs;
  };
  return inputs_at(bisect(target, [&](double candidate) {
    const HiddenStates states = hidden_states(model.model, tokens_BL, inputs_at(candidate));
    double sum = 0;
    for (const RouteOutput& routing : states.routing) sum += mean_experts(routing);
    return sum / static_cast<double>(layers);
  }));
}

}  // namespace

RoutingInputs solve_thresholds(const InferenceModel& model, const at::Tensor& tokens_BL, double target) {
  const RoutingConfig& routing = model.config.routing;
  const int64_t experts = model.config.model.num_experts;
  if (model.config.model.is_dense() || routing.method == RoutingMethod::kTopK)
    throw UsageError("--target-experts needs a model routed by top_p or dtop_p: this one has no threshold");
  if (!(target >= 1 && target <= static_cast<double>(experts)))
    throw UsageError("--target-experts " + std::to_string(target) + ": not between 1 and the model's " +
                     std::to_string(experts) + " experts");
  const at::NoGradGuard no_grad;
  const bool by_layer = routing.method == RoutingMethod::kDTopP && routing.scope == ThresholdScope::kLayer;
  const at::Tensor tokens = to_device(tokens_BL, model.device());
  return by_layer ? solve_by_layer(model, tokens, target) : solve_globally(model, tokens, target);
}

at::Tensor solving_windows(std::span<const int64_t> ids, int64_t sequence_length, const std::string& source) {
  const auto count = static_cast<int64_t>(ids.size());
  const int64_t length = std::min(sequence_length, count);
  if (length == 0) throw DataError(source + ": holds no text to solve --target-experts on");
  const int64_t windows = std::clamp<int64_t>(kSolveTokens / length, 1, count / length);
  return at::tensor(at::IntArrayRef(ids.data(), windows * length)).view({windows, length});
}

}  // namespace dtopp
