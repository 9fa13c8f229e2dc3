// The time, for differences.
#pragma once

#include <chrono>

namespace dtopp {

inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace dtopp
