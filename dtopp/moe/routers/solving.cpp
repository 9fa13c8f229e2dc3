#include "dtopp/moe/routers/solving.h"

#include <algorithm>
#include <cmath>

#include "dtopp/moe/active_expert_curve.h"

namespace dtopp::moe {
namespace {

constexpr int kHalvings = 40;            // p has an error of 1e-12
constexpr double kCloseEnough = 1.0e-4;  // relative to the target

}  // namespace

double bisect_threshold(double target, c10::function_ref<double(double)> count) {
  double low = kMinThreshold, high = kMaxThreshold;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = low + (high - low) / 2;
    const double experts = count(middle);
    if (std::abs(experts - target) <= kCloseEnough * target) return middle;
    (experts < target ? low : high) = middle;
  }
  return low + (high - low) / 2;
}

double broadcast_number(distributed::Collectives* ranks, double here) {
  if (ranks == nullptr || ranks->size() == 1) return here;
  const at::Tensor number = at::full({1}, here, at::kDouble);
  ranks->broadcast(number, /*root=*/0, "agreement").wait();
  return number.item<double>();
}

ops::RouteOutput SolvingRouter::select(const RouterInput& input) {
  const auto layer = static_cast<size_t>(input.layer);
  const double target = targets_.size() == 1 ? targets_[0] : targets_.at(layer);
  const auto tokens = static_cast<double>(input.logits_TE.size(0));
  const auto route_at = [&](double p) {
    return route_by(input, /*top_k=*/0, at::full({}, p, at::device(device()).dtype(at::kDouble)),
                    bias_LE_.defined() ? bias_LE_[input.layer] : bias_LE_);
  };
  const double p = broadcast_number(ranks_, bisect_threshold(target, [&](double candidate) {
                                      const at::Tensor counts_E =
                                          route_at(candidate).tokens_per_expert_E.narrow(0, 0, num_experts());
                                      return static_cast<double>(counts_E.sum().item<int64_t>()) / tokens;
                                    }));
  thresholds_.resize(std::max(thresholds_.size(), layer + 1));
  thresholds_[layer] = p;
  return route_at(p);
}

}  // namespace dtopp::moe
