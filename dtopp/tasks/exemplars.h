// Which items of a data set stand as examples before each of its items: llm-foundry's draw with seed 1234,
// which runs through CPython's random.Random(1234).sample() and the order of a Python set.
#pragma once

#include <cstdint>
#include <vector>

namespace dtopp {

// Above this many items CPython draws as below; no task has so few.
inline constexpr int64_t kFewestItemsWithExemplars = 22;

// The indices of `shots` (at most 5) other items, in prompt order, for each of the items 0 … count-1 of a
// data set of `num_items`. One generator serves all items in order, so the first ones do not depend on
// `count`. DataError when there are fewer than kFewestItemsWithExemplars items to draw from.
std::vector<std::vector<int64_t>> draw_exemplars(int64_t num_items, int64_t shots, int64_t count);

}  // namespace dtopp
