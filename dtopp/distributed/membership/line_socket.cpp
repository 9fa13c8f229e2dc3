#include "dtopp/distributed/membership/line_socket.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dtopp/base/descriptor.h"

namespace dtopp::distributed {
namespace {

// A peer that sends this many bytes without a line break is not a dtopp rank.
constexpr size_t kLongestLine = size_t{1} << 16;

int checked(int result) {
  if (result < 0) throw std::runtime_error(std::strerror(errno));
  return result;
}

// Listens on `address`. `port` refers to the port field of `address`, in network byte order.
int listen_on(sockaddr* address, socklen_t length, in_port_t& port) {
  const int listening = checked(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  try {
    const int on = 1, off = 0;
    checked(::setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    if (address->sa_family == AF_INET6)
      checked(::setsockopt(listening, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
    checked(::bind(listening, address, length));
    checked(::listen(listening, SOMAXCONN));
    checked(::getsockname(listening, address, &length));
  } catch (...) {
    ::close(listening);
    throw;
  }
  port = ntohs(port);
  return listening;
}

int listen_on_ipv4(uint16_t& port, in_addr_t host) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(host);
  const int listening = listen_on(reinterpret_cast<sockaddr*>(&address), sizeof address, address.sin_port);
  port = address.sin_port;
  return listening;
}

int listen_on_ipv6(uint16_t& port) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  const int listening = listen_on(reinterpret_cast<sockaddr*>(&address), sizeof address, address.sin6_port);
  port = address.sin6_port;
  return listening;
}

}  // namespace

int listening_socket(uint16_t& port, bool loopback_only) {
  if (loopback_only) return listen_on_ipv4(port, INADDR_LOOPBACK);
  try {
    return listen_on_ipv6(port);
  } catch (const std::runtime_error&) {  // a host without IPv6
    return listen_on_ipv4(port, INADDR_ANY);
  }
}

LineSocket LineSocket::connect(const std::string& host, uint16_t port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int answer = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (answer != 0) throw std::runtime_error(::gai_strerror(answer));
  int error = 0, connected = -1;
  for (const addrinfo* address = found; address && connected < 0; address = address->ai_next) {
    connected = ::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connected >= 0 &&
        retry([&] { return ::connect(connected, address->ai_addr, address->ai_addrlen); }) == 0)
      break;
    error = errno;
    if (connected >= 0) ::close(connected);
    connected = -1;
  }
  ::freeaddrinfo(found);
  if (connected < 0) throw std::runtime_error(std::strerror(error));
  return LineSocket(connected);
}

LineSocket::~LineSocket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

LineSocket::LineSocket(LineSocket&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      incoming_(std::move(other.incoming_)),
      outgoing_(std::move(other.outgoing_)),
      ended_(other.ended_) {}

void LineSocket::send(const std::string& line) {
  outgoing_ += line + '\n';
  while (!outgoing_.empty()) {
    const auto sent = retry(
        [&] { return ::send(descriptor_, outgoing_.data(), outgoing_.size(), MSG_DONTWAIT | MSG_NOSIGNAL); });
    if (sent < 0) return;  // if the other end is closed, receive() detects it
    outgoing_.erase(0, static_cast<size_t>(sent));
  }
}

std::vector<std::string> LineSocket::receive() {
  std::array<char, 4096> buffer;
  while (!ended_ && incoming_.size() < kLongestLine) {
    const auto count = retry([&] { return ::recv(descriptor_, buffer.data(), buffer.size(), MSG_DONTWAIT); });
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (count <= 0)
      ended_ = true;
    else
      incoming_.append(buffer.data(), static_cast<size_t>(count));
  }
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t end; (end = incoming_.find('\n', begin)) != std::string::npos; begin = end + 1)
    lines.push_back(incoming_.substr(begin, end - begin));
  incoming_.erase(0, begin);
  if (incoming_.size() >= kLongestLine) ended_ = true;
  return lines;
}

void LineSocket::finish() { ::shutdown(descriptor_, SHUT_WR); }

}  // namespace dtopp::distributed
