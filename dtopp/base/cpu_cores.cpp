#include "dtopp/base/cpu_cores.h"

#include <fstream>
#include <string_view>

#include <sys/utsname.h>

namespace dtopp {

std::string cpu_model() {
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
