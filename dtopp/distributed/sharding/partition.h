// Which elements of a parameter a rank keeps: its master, its moments, the sum of its gradients. A parameter
// is cut into units, whose sizes depend on the parameter alone; each rank keeps whole units that follow each
// other. What is formed unit by unit (an update, a norm) therefore has the same bits on every grid of ranks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dtopp/distributed/topology/rank_grid.h"

namespace dtopp {

struct ElementRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  // The same elements, counted from `first` on.
  ElementRange from(int64_t first) const { return {begin - first, end - first}; }
};

// Of so many elements of all parameters, those that travel together: few enough that most of them travel
// while others are computed, and for memory; enough that a message is worth its latency.
inline int64_t bucket_elements(int64_t elements) {
  return std::clamp(elements / 16, int64_t{1} << 14, int64_t{40} << 20);
}

class Partition {
 public:
  // Of the parameter `index` of a model: the few units of small ones go to different ranks. pieces: equal
  // parts of it, shared out to places whole: a layer's experts, which `places` divides. 1: places share its
  // units.
  Partition(int64_t elements, int64_t pieces, int64_t index, const RankGrid& grid);

  int64_t elements() const { return elements_; }
  int64_t num_units() const { return pieces_ * units_each_; }
  ElementRange unit(int64_t unit) const;
  // What the replicas of a place keep together.
  ElementRange slice(int64_t place) const { return elements_of(slice_units(place)); }
  // What a rank and those of other nodes that stand there as it does keep together, in its place's slice.
  ElementRange part(int64_t rank) const { return elements_of(part_units(rank)); }
  // What a rank keeps, in its part.
  ElementRange kept(int64_t rank) const { return elements_of(kept_units(rank)); }
  // The units of kept(rank).
  ElementRange kept_units(int64_t rank) const;

 private:
  ElementRange slice_units(int64_t place) const;
  ElementRange part_units(int64_t rank) const;
  ElementRange elements_of(const ElementRange& units) const;

  int64_t elements_, pieces_, index_;
  RankGrid grid_;
  int64_t unit_ = 0, units_each_ = 0;  // elements, but for a piece's last; of a piece
};

}  // namespace dtopp
