// Under which address the other ranks reach this one.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace dtopp {

// Numbers, no names.
struct Route {
  std::string own;     // of this host, from which it is reached
  std::string remote;  // of the other one

  bool operator==(const Route&) const = default;
};

// How this host reaches `host`; nothing where it has no address or no way there is known. Sends nothing.
std::optional<Route> route_to(const std::string& host);

// The address of `rank`, from all ranks' routes to rank 0's host: where it sends from. Who is on that host
// finds only itself there, often as 127.0.1.1 (Debian's /etc/hosts); its address is then the one the others
// know it by. Empty where nothing is known.
std::string own_address(const std::vector<std::optional<Route>>& routes, size_t rank);

}  // namespace dtopp
