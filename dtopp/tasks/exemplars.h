// Draws the items that serve as examples before each item of a data set. It reproduces llm-foundry's draw
// with seed 1234, which depends on CPython's random.Random(1234).sample() and on the iteration order of a
// Python set.
#pragma once

#include <cstdint>
#include <vector>

namespace dtopp::tasks {

// From this number of items on, CPython's sample() draws as implemented here. No task has fewer.
inline constexpr int64_t kFewestItemsWithExemplars = 22;

// For each of the items 0 … count-1 of a data set of `num_items`: the indices of `shots` (at most 5) other
// items, in prompt order. One generator serves all items in order, so the first ones do not depend on
// `count`.
//
// Throws:        DataError if there are fewer than kFewestItemsWithExemplars items
std::vector<std::vector<int64_t>> draw_exemplars(int64_t num_items, int64_t shots, int64_t count);

}  // namespace dtopp::tasks
