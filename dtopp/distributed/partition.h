// Which elements of a parameter a rank keeps: its master, its moments, the sum of its gradients. A parameter
// is cut into units, whose sizes depend on the parameter alone; each rank keeps whole units that follow each
// other. What is formed unit by unit (an update, a norm) therefore has the same bits on every grid of ranks.
#pragma once

#include <cstdint>

namespace dtopp {

struct ElementRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// Ranks in blocks of `places` consecutive ones, which share out the experts of a layer (expert parallelism);
// the ranks of one place are replicas of each other.
struct RankGrid {
  int64_t places = 1, replicas = 1;

  int64_t size() const { return places * replicas; }
  int64_t place(int64_t rank) const { return rank % places; }
  int64_t replica(int64_t rank) const { return rank / places; }
};

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
  // What a rank keeps, in its place's slice.
  ElementRange kept(int64_t rank) const { return elements_of(kept_units(rank)); }
  // The units of kept(rank).
  ElementRange kept_units(int64_t rank) const;

 private:
  ElementRange slice_units(int64_t place) const;
  ElementRange elements_of(const ElementRange& units) const;

  int64_t elements_, pieces_, index_;
  RankGrid grid_;
  int64_t unit_ = 0, units_each_ = 0;  // elements, but for a piece's last; of a piece
};

}  // namespace dtopp
