#include "dtopp/moe/budget_watch.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "dtopp/base/format.h"

namespace dtopp::moe {
namespace {

constexpr double kMostOff = 0.5;  // relative to T

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double mean_distance(const std::deque<double>& active, double target) {
  double sum = 0;
  for (const double a : active) sum += std::abs(a - target);
  return sum / static_cast<double>(active.size());
}

}  // namespace

std::optional<std::string> BudgetWatch::observe(int64_t step, const std::vector<double>& active_L) {
  if (!config::has_controller(config_.method) || active_L.empty() || warned_ || step <= kSettling)
    return std::nullopt;
  const bool per_layer = config_.scope == config::ThresholdScope::kLayer;
  const std::vector<double> active_C = per_layer ? active_L : std::vector<double>{mean_of(active_L)};
  last_C_.resize(active_C.size());
  const std::vector<double> targets = config::experts_at(config_, step - 1, steps_);
  for (size_t c = 0; c < active_C.size(); ++c) {
    std::deque<double>& last = last_C_[c];
    last.push_back(active_C[c]);
    if (last.size() > kSteps) last.pop_front();
    const double target = targets[targets.size() > 1 ? c : 0];
    if (last.size() < kSteps || mean_distance(last, target) <= kMostOff * target) continue;
    warned_ = true;
    const auto [least, most] = std::ranges::minmax_element(last);
    return format(
        "the controller misses its target: %.1f to %.1f active experts per token in the last %zu steps%s%s, "
        "target %.3g; set routing.controller: solve",
        *least, *most, kSteps, per_layer ? " of layer " : "", per_layer ? std::to_string(c).c_str() : "",
        target);
  }
  return std::nullopt;
}

}  // namespace dtopp::moe
