// How many cores this machine has for us.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>

namespace dtopp {

// At least 1, also where the system does not tell.
inline int64_t cpu_cores() {
  return std::max<int64_t>(1, static_cast<int64_t>(std::thread::hardware_concurrency()));
}

// Of each of several processes that compute at the same time; at least 1.
inline int64_t share_of_cores(int64_t processes) { return std::max<int64_t>(1, cpu_cores() / processes); }

}  // namespace dtopp
