// Which elements of a parameter a rank keeps: its master, its moments, the sum of its gradients. A parameter
// is cut into units of one size, which depend on its size alone; each rank keeps whole units that follow each
// other. What is formed unit by unit (an update, a norm) therefore has the same bits at every number of
// ranks.
#pragma once

#include <cstdint>

namespace dtopp {

struct ElementRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

class Partition {
 public:
  // Of the parameter `index` of a model: the few units of small ones go to different ranks.
  Partition(int64_t elements, int64_t index, int64_t ranks);

  int64_t elements() const { return elements_; }
  int64_t unit() const { return unit_; }  // elements, but for the last one's
  int64_t num_units() const { return units_; }
  ElementRange range(int64_t rank) const;
  // The units of range(rank), in order.
  ElementRange units(int64_t rank) const;

 private:
  int64_t elements_, unit_, units_, index_, ranks_;
};

}  // namespace dtopp
