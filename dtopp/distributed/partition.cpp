#include "dtopp/distributed/partition.h"

#include <algorithm>

namespace dtopp {
namespace {

constexpr int64_t kSmallestUnit = int64_t{1} << 14;
constexpr int64_t kMostUnits = 1024;
constexpr int64_t kAlignment = 64;  // elements: no vector of any machine straddles two units

}  // namespace

Partition::Partition(int64_t elements, int64_t index, int64_t ranks)
    : elements_(elements), index_(index), ranks_(ranks) {
  const int64_t even = (elements + kMostUnits - 1) / kMostUnits;
  unit_ = std::max(kSmallestUnit, (even + kAlignment - 1) / kAlignment * kAlignment);
  units_ = (elements + unit_ - 1) / unit_;
}

ElementRange Partition::units(int64_t rank) const {
  const int64_t place = (rank + index_) % ranks_;
  return {units_ * place / ranks_, units_ * (place + 1) / ranks_};
}

ElementRange Partition::range(int64_t rank) const {
  const ElementRange mine = units(rank);
  return {std::min(mine.begin * unit_, elements_), std::min(mine.end * unit_, elements_)};
}

}  // namespace dtopp
