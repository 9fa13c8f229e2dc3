#pragma once

#include <algorithm>
#include <vector>

namespace dtopp {

// The median of at least one number. For an even count it is the larger of the two middle numbers.
inline double median(std::vector<double> numbers) {
  const auto middle = numbers.begin() + std::ssize(numbers) / 2;
  std::ranges::nth_element(numbers, middle);
  return *middle;
}

}  // namespace dtopp
