#include "dtopp/launch/slurm_lists.h"

#include <algorithm>

#include "dtopp/base/whole_number.h"

namespace dtopp::launch {

std::optional<std::string> first_host(std::string_view hosts) {
  std::string host;
  for (size_t i = 0; i < hosts.size() && hosts[i] != ','; ++i) {
    if (hosts[i] == ']') return std::nullopt;
    if (hosts[i] != '[') {
      host += hosts[i];
      continue;
    }
    const size_t close = hosts.find(']', i);
    if (close == std::string_view::npos) return std::nullopt;
    const auto first = hosts.substr(i + 1, hosts.find_first_of(",-]", i) - i - 1);
    if (!whole_number(first)) return std::nullopt;
    host += first;  // as written: leading zeros belong to the name
    i = close;
  }
  return host.empty() ? std::nullopt : std::optional(host);
}

std::optional<int64_t> tasks_on_node(std::string_view tasks, int64_t node) {
  while (!tasks.empty()) {
    const size_t comma = std::min(tasks.find(','), tasks.size());
    const auto entry = tasks.substr(0, comma);
    tasks.remove_prefix(std::min(comma + 1, tasks.size()));
    const size_t open = std::min(entry.find("(x"), entry.size());
    const auto count = whole_number(entry.substr(0, open));
    std::optional<int64_t> nodes = 1;
    if (open < entry.size()) {
      if (entry.back() != ')') return std::nullopt;
      nodes = whole_number(entry.substr(open + 2, entry.size() - open - 3));
    }
    if (!count || !nodes) return std::nullopt;
    if (node < *nodes) return count;
    node -= *nodes;
  }
  return std::nullopt;
}

}  // namespace dtopp::launch
