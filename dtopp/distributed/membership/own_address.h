// Finds the address under which the other ranks reach this one.
//
// Collective:    no
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace dtopp::distributed {

// Numeric addresses, not names.
struct Route {
  std::string own;     // the source address of this host on this route
  std::string remote;  // the address of the other host

  bool operator==(const Route&) const = default;
};

// The route from this host to `host`; nullopt if `host` has no address or no known route. Sends no packets.
std::optional<Route> route_to(const std::string& host);

// The address of `rank`, given the routes of all ranks to rank 0's host: the source address of its own route.
//
// A rank on rank 0's host has a loopback source, often because /etc/hosts maps the name to 127.0.1.1
// (Debian). Its address is then the one that other hosts use for rank 0. Returns "" if `rank` has no route.
std::string own_address(const std::vector<std::optional<Route>>& routes, size_t rank);

}  // namespace dtopp::distributed
