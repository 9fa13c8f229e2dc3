// Room for the token-expert pairs of a micro-batch in each layer, where the host must not wait for their
// number: those of the last step whose result is known, times a margin. A step that had more is run again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dtopp {

constexpr double kPairMargin = 1.25;

class PairLimits {
 public:
  // No limits, and none are predicted: a micro-batch gets the room it needs.
  PairLimits() = default;
  explicit PairLimits(double margin) : margin_(margin) {}

  // One a layer; empty: as much as it takes.
  const std::vector<int64_t>& limits_L() const { return limits_L_; }

  // A step had at most so many pairs in a micro-batch.
  void observe(std::span<const int64_t> most_pairs_L) {
    limits_L_.clear();
    if (margin_ == 0) return;
    for (const int64_t most : most_pairs_L) {
      limits_L_.push_back(static_cast<int64_t>(margin_ * static_cast<double>(most)) + 1);
    }
  }
  void forget() { limits_L_.clear(); }

 private:
  double margin_ = 0;
  std::vector<int64_t> limits_L_;
};

}  // namespace dtopp
