// Samples of several sources, each with a share of them that its weight gives: which source a sample of the
// global order is of, and which of the source's it is. Both depend on (weights, sizes, seed, position) alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtopp/base/random.h"

namespace dtopp {

// A pattern that repeats: as long as the weights' smallest whole numbers sum to (0.7 and 0.3: 10), or, where
// that is more than kLongestPattern, so long with shares rounded to it, each source once at least. In any n
// samples in a row a source has n times its share, less than 1 off where there are two sources or n is a
// multiple of the pattern, less than 2 off else (Tijdeman, "The chairman assignment problem", 1980).
class Mixture {
 public:
  static constexpr uint64_t kLongestPattern = uint64_t{1} << 20;

  // weights: above 0. std::invalid_argument else, or where there are none or more than fit the pattern.
  explicit Mixture(const std::vector<double>& weights);

  size_t source(uint64_t position) const { return source_[position % source_.size()]; }
  // How many of the samples before `position` are the source's.
  uint64_t count(size_t source, uint64_t position) const;
  uint64_t pattern_length() const { return source_.size(); }
  size_t num_sources() const { return places_.size(); }

 private:
  std::vector<uint32_t> source_;               // by place in the pattern
  std::vector<std::vector<uint32_t>> places_;  // of each source in the pattern
};

// The samples of a mixture, each source's in epochs of its own: a fresh permutation of its samples each.
class MixedOrder {
 public:
  // sizes: samples of each source, above 0.
  MixedOrder(const std::vector<double>& weights, std::vector<uint64_t> sizes, uint64_t seed);

  struct Place {
    size_t source;
    uint64_t index;  // of the source's samples
  };
  Place operator()(uint64_t position) const;
  // Of the samples before `position`: the source's share, and how many times over they are the source's
  // samples.
  double share(size_t source, uint64_t position) const;
  double epochs(size_t source, uint64_t position) const;
  size_t num_sources() const { return sizes_.size(); }

 private:
  Mixture mixture_;
  std::vector<uint64_t> sizes_;
  std::vector<RandomStream> orders_;
};

// What sources are called in metrics: the stem of each path, or as many of its last parts, joined by "_", as
// tell them all apart. The paths differ once they are normalised.
std::vector<std::string> source_names(const std::vector<std::string>& paths);

}  // namespace dtopp
