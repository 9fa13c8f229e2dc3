// Room for the token-expert pairs of a micro-batch in each layer, where the host must not wait for their
// number: those of a step before whose result is known, times a margin. A step that had more is run again.
// Rooms are of few sizes and seldom change, so that memory freed by one step is what the next asks for.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace dtopp {

constexpr double kPairMargin = 1.25;

// Room for `pairs` times the margin: of sizes that are 1/64 to 1/32 of themselves apart.
inline int64_t room_for_pairs(double pairs, double margin = kPairMargin) {
  const int64_t least = static_cast<int64_t>(margin * pairs) + 1;
  const int64_t step = std::max<int64_t>(std::bit_floor(static_cast<uint64_t>(least)) / 32, 1);
  return (least + step - 1) / step * step;
}

class PairLimits {
 public:
  // No limits, and none are predicted: a micro-batch gets the room it needs.
  PairLimits() = default;
  explicit PairLimits(double margin) : margin_(margin) {}

  // One a layer; empty: as much as it takes.
  const std::vector<int64_t>& limits_L() const { return limits_L_; }

  // A step had at most so many pairs in a micro-batch. A limit stays while it leaves from half to one and a
  // half of what the margin leaves.
  void observe(std::span<const int64_t> most_pairs_L) {
    if (margin_ == 0) return;
    limits_L_.resize(most_pairs_L.size(), -1);
    for (size_t l = 0; l < limits_L_.size(); ++l) {
      const auto most = static_cast<double>(most_pairs_L[l]), limit = static_cast<double>(limits_L_[l]);
      const double spare = (margin_ - 1) * most;
      if (limit < most + 0.5 * spare || limit > most + 1.5 * spare)
        limits_L_[l] = room_for_pairs(most, margin_);
    }
  }
  void forget() { limits_L_.clear(); }

 private:
  double margin_ = 0;
  std::vector<int64_t> limits_L_;
};

}  // namespace dtopp
