#include "dtopp/distributed/membership/own_address.h"

#include <array>

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

namespace dtopp::distributed {
namespace {

std::string number_of(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  const bool found =
      ::getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  return found ? text.data() : "";
}

// connect() on a datagram socket only looks up the route.
std::optional<Route> route_of(const addrinfo& to) {
  const int descriptor = ::socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return std::nullopt;
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  auto* address = reinterpret_cast<sockaddr*>(&own);
  const bool found = ::connect(descriptor, to.ai_addr, to.ai_addrlen) == 0 &&
                     ::getsockname(descriptor, address, &length) == 0;
  ::close(descriptor);
  if (!found) return std::nullopt;
  return Route{number_of(address, length), number_of(to.ai_addr, to.ai_addrlen)};
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

}  // namespace

std::optional<Route> route_to(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(host.c_str(), "1", &hints, &found) != 0) return std::nullopt;
  std::optional<Route> route;
  for (const addrinfo* to = found; to && !route; to = to->ai_next) route = route_of(*to);
  ::freeaddrinfo(found);
  return route;
}

std::string own_address(const std::vector<std::optional<Route>>& routes, size_t rank) {
  if (!routes[rank]) return "";
  if (!is_loopback(routes[rank]->own)) return routes[rank]->own;
  for (const std::optional<Route>& route : routes)
    if (route && !is_loopback(route->remote)) return route->remote;
  return routes[rank]->own;
}

}  // namespace dtopp::distributed
