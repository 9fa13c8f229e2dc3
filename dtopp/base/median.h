#pragma once

#include <algorithm>
#include <vector>

namespace dtopp {

// Of an even number of them the larger middle one. There is at least one.
inline double median(std::vector<double> numbers) {
  const auto middle = numbers.begin() + std::ssize(numbers) / 2;
  std::ranges::nth_element(numbers, middle);
  return *middle;
}

}  // namespace dtopp
