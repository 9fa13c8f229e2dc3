// Returns the time of a steady clock in seconds, for measuring durations.
#pragma once

#include <chrono>

namespace dtopp {

inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace dtopp
