// Counts the CPU cores of this machine and names their model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include <sys/utsname.h>

namespace dtopp {

// At least 1, even if the system does not report a number.
inline int64_t cpu_cores() {
  return std::max<int64_t>(1, static_cast<int64_t>(std::thread::hardware_concurrency()));
}

// The cores per process if `processes` processes compute at the same time; at least 1.
inline int64_t share_of_cores(int64_t processes) { return std::max<int64_t>(1, cpu_cores() / processes); }

// For example "AMD EPYC 9454 48-Core Processor"; the architecture ("aarch64") if the system has no name.
inline std::string cpu_model() {
  constexpr std::string_view kKey = "model name";
  std::ifstream facts("/proc/cpuinfo");
  for (std::string line; std::getline(facts, line);) {
    const size_t begin = line.find(": ");
    if (line.starts_with(kKey) && begin != std::string::npos) return line.substr(begin + 2);
  }
  utsname system{};
  return ::uname(&system) == 0 ? system.machine : "";
}

}  // namespace dtopp
