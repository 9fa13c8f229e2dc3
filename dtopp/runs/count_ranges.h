// Divides expert counts into ranges that double. A few metrics then show how many tokens use how many
// experts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace dtopp::runs {

struct CountRange {
  int64_t first, last;

  // For example "2" or "3-4".
  std::string name() const {
    const std::string begin = std::to_string(first);
    return first == last ? begin : begin + "-" + std::to_string(last);
  }
  std::string metric() const { return "moe/tokens_with/" + name(); }
};

// 1, 2, 3-4, 5-8, … up to `most`.
inline std::vector<CountRange> count_ranges(int64_t most) {
  std::vector<CountRange> ranges;
  for (int64_t first = 1, last = 1; first <= most; first = last + 1, last *= 2)
    ranges.push_back({first, std::min(last, most)});
  return ranges;
}

}  // namespace dtopp::runs
