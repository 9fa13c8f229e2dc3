#include "dtopp/moe/solving.h"

#include <cmath>

#include "dtopp/ops/route/cumulative_prob_bins.h"

namespace dtopp::moe {
namespace {

// values_CM at one index per row.
Tensor at_index(const Tensor& values_CM, const Tensor& index_C) {
  return values_CM.gather(1, index_C.unsqueeze(1)).squeeze(1);
}

}  // namespace

Tensor cumulative_prob_bin_edges(const at::Device& device) {
  const auto edges = ops::cumulative_prob_edges();
  return at::tensor(at::ArrayRef<double>(edges.data(), edges.size()), at::kDouble).to(device);
}

ActiveExpertCurve::ActiveExpertCurve(const Tensor& prob_histogram_CM, const Tensor& edges)
    : edges_(edges),
      prob_histogram_CM_(prob_histogram_CM.to(at::kDouble)),
      up_to_CM_(prob_histogram_CM_.cumsum(1)) {}

Tensor ActiveExpertCurve::below(const Tensor& p_C) const {
  const Tensor bin_C = at::searchsorted(edges_, p_C, /*out_int32=*/false, /*right=*/true)
                           .sub(1)
                           .clamp(0, prob_histogram_CM_.size(1) - 1);
  const Tensor begin_C = edges_.index_select(0, bin_C), end_C = edges_.index_select(0, bin_C + 1);
  const Tensor inside_C = at_index(prob_histogram_CM_, bin_C);
  return at_index(up_to_CM_, bin_C) - inside_C * ((end_C - p_C) / (end_C - begin_C));
}

Tensor ActiveExpertCurve::threshold(const Tensor& count_C) const {
  const Tensor all_C = up_to_CM_.select(1, -1);
  const Tensor bin_C =
      at::searchsorted(up_to_CM_, count_C.unsqueeze(1)).squeeze(1).clamp(0, prob_histogram_CM_.size(1) - 1);
  const Tensor begin_C = edges_.index_select(0, bin_C), end_C = edges_.index_select(0, bin_C + 1);
  const Tensor beyond_C = (at_index(up_to_CM_, bin_C) - count_C) / at_index(prob_histogram_CM_, bin_C);
  Tensor p_C = (end_C - (end_C - begin_C) * beyond_C).clamp(kMinThreshold, kMaxThreshold);
  p_C = at::where(count_C.le(0), at::full_like(p_C, kMinThreshold), p_C);
  return at::where(count_C.ge(all_C), at::full_like(p_C, kMaxThreshold), p_C);
}

std::unique_ptr<Router> make_top_p_router(const config::RunConfig& config, const at::Device& device) {
  return std::make_unique<TopPRouter>(
      config, at::full({1}, config.routing.threshold, at::device(device).dtype(at::kDouble)));
}

double solve_threshold(double target, c10::function_ref<double(double)> count) {
  constexpr int kMostCalls = 50;
  constexpr double kCloseEnough = 1.0e-4;  // relative to the target
  constexpr double kResolution = 1.0e-12;  // of p
  constexpr double kLeastStep = 0.01;      // of the interval
  const auto excess_at = [&](double p) { return count(p) - target; };
  const double tolerance = kCloseEnough * target;
  double low = kMinThreshold, high = kMaxThreshold;
  double above = excess_at(high);
  if (above <= tolerance) return high;
  double below = excess_at(low);
  if (below >= -tolerance) return low;
  double last = 0;
  for (int i = 0; i < kMostCalls && high - low > kResolution; ++i) {
    const double width = high - low;
    const double p = std::clamp(low + width * below / (below - above), low + width * kLeastStep,
                                high - width * kLeastStep);
    const double excess = excess_at(p);
    if (std::abs(excess) <= tolerance) return p;
    // Illinois rule: an end that stays twice counts half, so that the other end moves too.
    if (excess < 0) {
      if (last < 0) above /= 2;
      low = p;
      below = excess;
    } else {
      if (last > 0) below /= 2;
      high = p;
      above = excess;
    }
    last = excess;
  }
  return low + (high - low) / 2;
}

double broadcast_number(distributed::Collectives* ranks, double here) {
  if (ranks == nullptr || ranks->size() == 1) return here;
  const Tensor number = at::full({1}, here, at::kDouble);
  ranks->broadcast(number, /*root=*/0, "agreement").wait();
  return number.item<double>();
}

ops::RouteOutput SolvingRouter::select(const RouterInput& input) {
  const double target = targets_.size() == 1 ? targets_[0] : targets_.at(input.layer);
  const auto tokens = static_cast<double>(input.logits_TE.size(0));
  const auto route_at = [&](double p) {
    return route_by(input, /*top_k=*/0, at::full({}, p, at::device(device()).dtype(at::kDouble)),
                    bias_LE_.defined() ? bias_LE_[input.layer] : bias_LE_);
  };
  const auto count = [&](double p) {
    const Tensor counts_E = route_at(p).tokens_per_expert_E.narrow(0, 0, num_experts());
    return static_cast<double>(counts_E.sum().item<int64_t>()) / tokens;
  };
  const double p = broadcast_number(ranks_, solve_threshold(target, count));
  thresholds_.resize(std::max<size_t>(thresholds_.size(), input.layer + 1));
  thresholds_[input.layer] = p;
  return route_at(p);
}

}  // namespace dtopp::moe
