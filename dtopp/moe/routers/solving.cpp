#include "dtopp/moe/routers/solving.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "dtopp/moe/active_expert_curve.h"

namespace dtopp::moe {
namespace {

constexpr int kHalvings = 40;            // p has an error of 1e-12
constexpr double kCloseEnough = 1.0e-4;  // relative to the target
constexpr double kNearlyAll = 0.98;      // a p near the largest one
constexpr int kMostMisses = 2;

enum class Side { kBelow, kMet, kAbove };  // of the target

// The end of a bisection: its last midpoint and the interval that this one halves.
struct BisectionEnd {
  double low = kMinThreshold, high = kMaxThreshold, middle = 0;
  std::optional<Side> side{};  // of the midpoint; not kMet: the interval is too small to halve again
};

// side_of(p) returns nullopt to end the bisection at p.
template <class SideOf>
BisectionEnd bisect(const SideOf& side_of) {
  BisectionEnd end;
  for (int i = 0; i < kHalvings; ++i) {
    end.middle = end.low + (end.high - end.low) / 2;
    end.side = side_of(end.middle);
    if (!end.side || end.side == Side::kMet) return end;
    (end.side == Side::kBelow ? end.low : end.high) = end.middle;
  }
  end.middle = end.low + (end.high - end.low) / 2;
  return end;
}

}  // namespace

double bisect_threshold(double target, c10::function_ref<double(double)> count, KnownCounts& known) {
  const double tolerance = kCloseEnough * target;
  const auto side_of = [&](double experts) {
    if (std::abs(experts - target) <= tolerance) return Side::kMet;
    return experts < target ? Side::kBelow : Side::kAbove;
  };
  // The margin is for counts that do not grow with p everywhere.
  const auto known_side = [&](double p) -> std::optional<Side> {
    if (const auto found = known.find(p); found != known.end()) return side_of(found->second);
    for (const auto& [other, experts] : known) {
      if (other > p && experts <= target - 2 * tolerance) return Side::kBelow;
      if (other < p && experts >= target + 2 * tolerance) return Side::kAbove;
    }
    return std::nullopt;
  };
  // Interpolates between the known counts on both sides of p.
  const auto expected_side = [&](double p) -> std::optional<Side> {
    const auto right = known.upper_bound(p);
    if (right == known.begin() || right == known.end()) return std::nullopt;
    const auto left = std::prev(right);
    const double share = (p - left->first) / (right->first - left->first);
    return side_of(left->second + (right->second - left->second) * share);
  };
  int misses = 0;  // expected midpoints in a row that missed the target on the same side
  std::optional<Side> last;
  for (;;) {
    bool is_expected = false;
    const BisectionEnd end = bisect([&](double p) {
      std::optional<Side> side = known_side(p);
      if (side || misses == kMostMisses) return side;
      side = expected_side(p);
      is_expected = is_expected || side.has_value();
      return side;
    });
    double next = end.middle;
    if (!end.side) {
      // The largest p shows whether any p reaches the target.
      if (end.middle > kNearlyAll && !known.contains(kMaxThreshold)) next = kMaxThreshold;
    } else if (end.side != Side::kMet || known.contains(end.middle)) {
      // The sides of both ends imply those of all earlier midpoints.
      if (end.low != kMinThreshold && !known_side(end.low)) {
        next = end.low;
      } else if (end.high != kMaxThreshold && !known_side(end.high)) {
        next = end.high;
      } else {
        return end.middle;
      }
    }
    const Side side = side_of(known[next] = count(next));
    misses = is_expected && side != Side::kMet && side == last ? misses + 1 : 0;
    last = side;
  }
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
  const auto count = [&](double p) {
    const at::Tensor counts_E = route_at(p).tokens_per_expert_E.narrow(0, 0, num_experts());
    return static_cast<double>(counts_E.sum().item<int64_t>()) / tokens;
  };
  KnownCounts known;
  const double p = broadcast_number(ranks_, bisect_threshold(target, count, known));
  thresholds_.resize(std::max(thresholds_.size(), layer + 1));
  thresholds_[layer] = p;
  return route_at(p);
}

}  // namespace dtopp::moe
