#include "dtopp/report/page/server.h"

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <list>
#include <string_view>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dtopp/base/errors.h"

namespace dtopp::report {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxRequest = 16384;
constexpr size_t kMaxConnections = 64;
constexpr auto kPatience = std::chrono::seconds(30);  // until an idle connection is closed
constexpr int kPollMilliseconds = 200;

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

struct Connection {
  Socket socket;
  std::string request = {}, answer = {};
  size_t sent = 0;
  Clock::time_point last = Clock::now();
};

std::string response(std::string_view status, std::string_view type, const std::string& body) {
  return "HTTP/1.1 " + std::string(status) + "\r\nContent-Type: " + std::string(type) +
         "; charset=utf-8\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n" + body;
}

std::string refusal(std::string_view status) {
  return response(status, "text/plain", std::string(status) + "\n");
}

// Returns the value of a header, or an empty string.
std::string_view header(std::string_view request, std::string_view name) {
  size_t from = request.find("\r\n");
  while (from != std::string_view::npos && from + 2 < request.size()) {
    from += 2;
    const size_t end = request.find("\r\n", from);
    const std::string_view line = request.substr(from, end - from);
    if (line.size() > name.size() && line[name.size()] == ':' &&
        strncasecmp(line.data(), name.data(), name.size()) == 0) {
      const size_t value = line.find_first_not_of(' ', name.size() + 1);
      return value == std::string_view::npos ? "" : line.substr(value);
    }
    from = end;
  }
  return "";
}

// Guards against DNS rebinding: another site's host name could resolve to this server, and its page could
// then read the report.
bool names_this_host(std::string_view host) {
  host = host.substr(0, host.find(':'));
  return host == "127.0.0.1" || host == "localhost";
}

std::string answer_to(std::string_view request, LiveReport& report) {
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const size_t first = line.find(' '), second = line.rfind(' ');
  if (first == second || !line.substr(second + 1).starts_with("HTTP/1.")) return refusal("400 Bad Request");
  if (!names_this_host(header(request, "Host"))) return refusal("403 Forbidden");
  if (line.substr(0, first) != "GET") return refusal("405 Method Not Allowed");
  const std::string_view target = line.substr(first + 1, second - first - 1);
  if (target == "/") return response("200 OK", "text/html", report.page());
  constexpr std::string_view kUpdate = "/update?since=";
  uint64_t since = 0;
  if (!target.starts_with(kUpdate)) return refusal("404 Not Found");
  const std::string_view number = target.substr(kUpdate.size());
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), since);
  if (error != std::errc{} || end != number.data() + number.size()) return refusal("400 Bad Request");
  return response("200 OK", "application/json", report.news(since));
}

int listen_on(uint16_t port) {
  Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int yes = 1;
  if (listener.get() < 0 || setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener.get(), 16) != 0)
    throw UsageError("--serve: port " + std::to_string(port) + " cannot be opened: " + std::strerror(errno) +
                     "; use another port, or omit it to get a free one");
  return listener.release();
}

uint16_t port_of(int listener) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

// This and the functions below return whether the connection stays open.
bool receive(Connection& connection, LiveReport& report) {
  char buffer[4096];
  const ssize_t n = recv(connection.socket.get(), buffer, sizeof buffer, 0);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  connection.last = Clock::now();
  connection.request.append(buffer, static_cast<size_t>(n));
  if (connection.request.find("\r\n\r\n") != std::string::npos)
    connection.answer = answer_to(connection.request, report);
  else if (connection.request.size() > kMaxRequest)
    connection.answer = refusal("431 Request Header Fields Too Large");
  return true;
}

bool send_on(Connection& connection) {
  const ssize_t n = send(connection.socket.get(), connection.answer.data() + connection.sent,
                         connection.answer.size() - connection.sent, MSG_NOSIGNAL);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  connection.last = Clock::now();
  connection.sent += static_cast<size_t>(n);
  return connection.sent < connection.answer.size();
}

bool proceed(Connection& connection, short events, LiveReport& report) {
  if ((events & (POLLERR | POLLNVAL)) != 0) return false;
  if (connection.answer.empty() && (events & (POLLIN | POLLHUP)) != 0) return receive(connection, report);
  if ((events & POLLOUT) != 0) return send_on(connection);
  return Clock::now() - connection.last < kPatience;
}

}  // namespace

ReportServer::ReportServer(uint16_t port) : listener_(listen_on(port)) {}

ReportServer::~ReportServer() { close(listener_); }

std::string ReportServer::address() const {
  return "http://127.0.0.1:" + std::to_string(port_of(listener_)) + "/";
}

void ReportServer::serve(LiveReport& report, bool (*stop)()) {
  std::list<Connection> connections;
  while (!stop()) {
    std::vector<pollfd> polled = {{listener_, POLLIN, 0}};
    for (const Connection& connection : connections)
      polled.push_back(
          {connection.socket.get(), static_cast<short>(connection.answer.empty() ? POLLIN : POLLOUT), 0});
    if (poll(polled.data(), polled.size(), kPollMilliseconds) < 0) continue;  // interrupted by a signal
    size_t index = 0;
    for (auto connection = connections.begin(); connection != connections.end();) {
      const bool goes_on = proceed(*connection, polled[++index].revents, report);
      connection = goes_on ? std::next(connection) : connections.erase(connection);
    }
    if ((polled[0].revents & POLLIN) == 0) continue;
    Socket accepted(accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (accepted.get() >= 0 && connections.size() < kMaxConnections)
      connections.push_back({std::move(accepted)});
  }
}

}  // namespace dtopp::report
