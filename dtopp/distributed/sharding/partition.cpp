#include "dtopp/distributed/sharding/partition.h"

#include <algorithm>

namespace dtopp {
namespace {

constexpr int64_t kSmallestUnit = int64_t{1} << 14;
constexpr int64_t kMostUnits = 1024;  // per parameter, unless it has more pieces
constexpr int64_t kAlignment = 64;    // elements; no vector instruction straddles two chunks

ElementRange part_of(const ElementRange& range, int64_t part, int64_t parts) {
  return {range.begin + range.size() * part / parts, range.begin + range.size() * (part + 1) / parts};
}

}  // namespace

Partition::Partition(int64_t elements, int64_t pieces, int64_t index, const ParallelDims& dims)
    : elements_(elements), pieces_(pieces), index_(index), dims_(dims) {
  const int64_t piece = elements / pieces, most = std::max<int64_t>(kMostUnits / pieces, 1);
  const int64_t even = (piece + most - 1) / most;
  unit_ = std::max(kSmallestUnit, (even + kAlignment - 1) / kAlignment * kAlignment);
  units_each_ = (piece + unit_ - 1) / unit_;
}

ElementRange Partition::unit(int64_t unit) const {
  const int64_t size = elements_ / pieces_, piece = unit / units_each_;
  const int64_t begin = unit % units_each_ * unit_;
  return {piece * size + begin, piece * size + std::min(begin + unit_, size)};
}

ElementRange Partition::slice_units(int64_t ep_rank) const {
  if (pieces_ == 1) return part_of({0, units_each_}, (ep_rank + index_) % dims_.ep_size, dims_.ep_size);
  const ElementRange pieces = part_of({0, pieces_}, ep_rank, dims_.ep_size);
  return {pieces.begin * units_each_, pieces.end * units_each_};
}

ElementRange Partition::part_units(int64_t rank) const {
  const int64_t parts = dims_.local_edp_size(), turn = dims_.edp_rank(rank) + index_ / dims_.ep_size;
  return part_of(slice_units(dims_.ep_rank(rank)), turn % parts, parts);
}

ElementRange Partition::kept_units(int64_t rank) const {
  const int64_t node = dims_.edp_rank(rank) / dims_.local_edp_size();
  const int64_t turn = node + index_ / (dims_.ep_size * dims_.local_edp_size());
  return part_of(part_units(rank), turn % dims_.nodes, dims_.nodes);
}

ElementRange Partition::elements_of(const ElementRange& units) const {
  const auto start = [&](int64_t of) { return of == num_units() ? elements_ : unit(of).begin; };
  return units.size() == 0 ? ElementRange{start(units.begin), start(units.begin)}
                           : ElementRange{start(units.begin), unit(units.end - 1).end};
}

}  // namespace dtopp
