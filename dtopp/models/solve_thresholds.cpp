#include "dtopp/models/solve_thresholds.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "dtopp/moe/threshold_controller.h"

namespace dtopp {
namespace {

constexpr int kHalvings = 40;            // p has an error of 1e-12
constexpr double kCloseEnough = 1.0e-4;  // relative to the target

// Returns the p at which count(p), which grows with p, reaches the target.
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
  return static_cast<double>(routing.tokens_per_expert_E.sum().item<int64_t>()) / tokens;
}

at::Tensor as_threshold(double p, const at::Device& device) {
  return at::full({}, p, at::device(device).dtype(at::kDouble));
}

}  // namespace

RoutingInputs solve_thresholds(const RoutingConfig& routing, int64_t num_routed_layers,
                               const std::vector<double>& targets, const at::Device& device,
                               const MeanExperts& forward, const RoutingInputs& inputs) {
  const at::NoGradGuard no_grad;
  const auto agreed = [&](double found) { return inputs.agree ? inputs.agree(found) : found; };
  RoutingInputs solved = inputs;
  solved.threshold.clear();
  if (routing.method == RoutingMethod::kDTopP && routing.scope == ThresholdScope::kLayer) {
    // A layer's input depends on p of the layers below, so one forward pass solves layer after layer.
    RoutingInputs solving = solved;
    solving.choose_threshold = [&](size_t layer, const at::Tensor& x_TD, const ExpertLayerWeights& weights) {
      const double target = targets[layer % targets.size()];
      const double p = agreed(bisect(target, [&](double candidate) {
        return mean_experts(route_tokens(x_TD, weights, routing, as_threshold(candidate, device)));
      }));
      solved.threshold.push_back(as_threshold(p, device));
      return solved.threshold.back();
    };
    forward(solving);
    return solved;
  }
  const double target =
      std::accumulate(targets.begin(), targets.end(), 0.0) / static_cast<double>(targets.size());
  const double p = bisect(target, [&](double candidate) {
    solved.threshold.assign(static_cast<size_t>(num_routed_layers), as_threshold(candidate, device));
    return agreed(forward(solved));  // all ranks then need equally many passes
  });
  solved.threshold.assign(static_cast<size_t>(num_routed_layers), as_threshold(p, device));
  return solved;
}

RoutingInputs solve_on_validation(const Model& model, const RoutingConfig& routing,
                                  const std::vector<double>& targets, const at::Device& device,
                                  const LossFunction& losses, const TrainingData& data,
                                  const RoutingInputs& inputs) {
  const auto room = static_cast<uint64_t>(std::max<int64_t>(1, kSolveTokens / model.tokens_per_sample));
  const auto samples = static_cast<int64_t>(std::min(room, data.validation_samples));
  const Batch batch = data.validation_batch(0, samples).to(device);
  return solve_thresholds(
      routing, model.num_routed_layers, targets, device,
      [&](const RoutingInputs& with) { return losses(batch, with).activations.summary().mean; }, inputs);
}

}  // namespace dtopp
