#include "dtopp/distributed/rendezvous.h"

#include <array>
#include <cstdlib>
#include <cstring>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/distributed/collectives.h"

namespace dtopp::distributed {
namespace {

// A peer that sends this many bytes without a line break is not a dtopp rank.
constexpr size_t kLongestLine = size_t{1} << 16;

int checked(int result) {
  if (result < 0) throw std::runtime_error(std::strerror(errno));
  return result;
}

// Listens on `address`, whose port field is `address_port`.
int listen_on(auto& address, in_port_t& address_port, uint16_t& port) {
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  address_port = htons(port);
  socklen_t length = sizeof address;
  const int listening = checked(::socket(generic->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  try {
    const int on = 1, off = 0;
    checked(::setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    if (generic->sa_family == AF_INET6)
      checked(::setsockopt(listening, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
    checked(::bind(listening, generic, length));
    checked(::listen(listening, SOMAXCONN));
    checked(::getsockname(listening, generic, &length));
  } catch (...) {
    ::close(listening);
    throw;
  }
  port = ntohs(address_port);
  return listening;
}

int listen_on_ipv4(uint16_t& port, in_addr_t host) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(host);
  return listen_on(address, address.sin_port, port);
}

bool resolves(const std::string& host) {
  addrinfo* found = nullptr;
  const bool answer = ::getaddrinfo(host.c_str(), nullptr, nullptr, &found) == 0;
  if (found) ::freeaddrinfo(found);
  return answer;
}

}  // namespace

int listening_socket(uint16_t& port, bool loopback_only) {
  if (loopback_only) return listen_on_ipv4(port, INADDR_LOOPBACK);
  try {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    return listen_on(address, address.sin6_port, port);
  } catch (const std::runtime_error&) {  // a host without IPv6
    return listen_on_ipv4(port, INADDR_ANY);
  }
}

int connected_socket(const std::string& host, uint16_t port) {
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
  return connected;
}

LineSocket::~LineSocket() { ::close(descriptor_); }

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

StoreConnection make_store(const StoreOptions& options) {
  const std::string where = c10::str(options.host, ':', options.port);
  if (options.port < 0 || options.port > UINT16_MAX || (options.port == 0 && !options.is_server))
    throw UsageError(where, ": the port is not from 1 to 65535");
  try {
    c10d::TCPStoreOptions tcp;
    tcp.port = static_cast<uint16_t>(options.port);
    tcp.isServer = options.is_server;
    tcp.waitWorkers = false;
    // TCPStore's own socket would listen on every interface.
    if (options.is_server && options.loopback_only)
      tcp.masterListenFd = listening_socket(tcp.port, /*loopback_only=*/true);
    c10::intrusive_ptr<c10d::TCPStore> store;
    const auto connect = [&](std::chrono::milliseconds time) {
      tcp.timeout = time;
      store = c10::make_intrusive<c10d::TCPStore>(options.host, tcp);
    };
    if (options.is_server)
      connect(options.timeout);  // to itself
    else
      wait_in_slices(options.timeout, std::chrono::milliseconds(2000), connect);
    store->setTimeout(options.timeout);
    const int64_t port = store->getPort();
    if (options.prefix.empty()) return {std::move(store), port};
    return {c10::make_intrusive<c10d::PrefixStore>(options.prefix, std::move(store)), port};
  } catch (const StoppedEarly&) {
    throw;
  } catch (const std::exception& error) {
    if (!resolves(options.host)) throw UsageError(where, ": the host's name has no address");
    if (options.is_server)
      throw UsageError("cannot serve ", where, ": ", reason_of(error), "; choose another port");
    throw ResourceError("no store at ", where, " within ", options.timeout.count(),
                        " ms: ", reason_of(error));
  }
}

void configure_transport() {
  FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
  for (const char* name :
       {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_RETHROW_CUDA_ERRORS",
        "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"})
    ::setenv(name, "0", 0);
}

}  // namespace dtopp::distributed
