#include "dtopp/device/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include <sys/resource.h>
#include <unistd.h>

namespace dtopp::device {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

uint64_t minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

// The first number in a file; nullopt for "max" or if the file does not exist.
std::optional<uint64_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// The number after `key` in a file of "key number" lines.
std::optional<uint64_t> read_entry(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

uint64_t machine_memory(const fs::path& root) {
  const auto kilobytes = read_entry(root / "proc/meminfo", "MemAvailable:");
  return kilobytes ? *kilobytes * 1024 : kUnlimited;
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // in memory.stat
};

// The least memory that a control group and its parents up to `top` leave. In a container, the path in
// /proc/self/cgroup may not exist below `top`; then only the limit of `top` counts.
uint64_t group_memory(const fs::path& top, const std::string& path, const GroupFiles& files) {
  uint64_t least = kUnlimited;
  fs::path group = top / fs::path(path).relative_path();
  while (true) {
    const auto limit = read_number(group / files.limit);
    const auto usage = read_number(group / files.usage);
    if (limit && usage) {
      const uint64_t reclaimable = read_entry(group / "memory.stat", files.reclaimable).value_or(0);
      least = std::min(least, minus(*limit, minus(*usage, reclaimable)));
    }
    if (group == top || !group.has_relative_path() || group.string().size() <= top.string().size()) break;
    group = group.parent_path();
  }
  return least;
}

uint64_t control_group_memory(const fs::path& root) {
  uint64_t least = kUnlimited;
  std::ifstream groups(root / "proc/self/cgroup");
  // "0::/path" is cgroup version 2; "4:memory:/path" is version 1.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty())
      least = std::min(least, group_memory(root / "sys/fs/cgroup", path,
                                           {"memory.max", "memory.current", "inactive_file"}));
    if (controllers == "memory")
      least = std::min(
          least, group_memory(root / "sys/fs/cgroup/memory", path,
                              {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}));
  }
  return least;
}

uint64_t address_space(const fs::path& root) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  const auto pages = read_number(root / "proc/self/statm");
  return minus(limit.rlim_cur, pages.value_or(0) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)));
}

}  // namespace

uint64_t available_memory(const fs::path& root) {
  return std::min({machine_memory(root), control_group_memory(root), address_space(root)});
}

uint64_t process_memory(const std::string& key) {
  return read_entry("/proc/self/status", key + ":").value_or(0) * 1024;
}

}  // namespace dtopp::device
