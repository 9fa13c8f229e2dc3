#include "dtopp/distributed/membership/rank_connections.h"

#include <algorithm>
#include <functional>
#include <random>
#include <sstream>
#include <stdexcept>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "dtopp/base/descriptor.h"

namespace dtopp::distributed {
namespace {

constexpr char kAddressKey[] = "watcher";                      // "PORT SECRET"
constexpr auto kAcceptAgain = std::chrono::milliseconds(100);  // after a failure, such as too many open files

// A secret that only ranks receive: another process that finds the port cannot join.
std::string random_word() {
  std::random_device random;
  return std::to_string(random()) + "-" + std::to_string(random());
}

}  // namespace

RankConnections::RankConnections(c10d::Store& store, int64_t rank, int64_t size, const std::string& address,
                                 bool loopback_only)
    : size_(size) {
  uint16_t port = 0;
  if (rank == 0) {
    secret_ = random_word();
    listening_ = listening_socket(port, loopback_only);
    store.set(kAddressKey, std::to_string(port) + " " + secret_);
  } else {
    std::istringstream words(store.get_to_str(kAddressKey));
    if (!(words >> port >> secret_)) throw std::runtime_error("the store's entry for the watcher is damaged");
    connections_.push_back({LineSocket::connect(address, port), 0});
    connections_.front().socket.send(secret_ + " " + std::to_string(rank));
  }
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) throw std::runtime_error("no file descriptor is left");
}

RankConnections::~RankConnections() {
  if (listening_ >= 0) ::close(listening_);
  ::close(wake_);
}

std::vector<RankConnections::Event> RankConnections::wait(std::chrono::milliseconds patience) {
  const bool accepts = std::chrono::steady_clock::now() >= accept_after_;
  if (!accepts) patience = std::min(patience, kAcceptAgain);
  std::vector<pollfd> ready = {{wake_, POLLIN, 0}, {accepts ? listening_ : -1, POLLIN, 0}};
  for (const Connection& connection : connections_)
    ready.push_back({connection.ended ? -1 : connection.socket.descriptor(), POLLIN, 0});
  ::poll(ready.data(), ready.size(), static_cast<int>(patience.count()));
  uint64_t count = 0;
  (void)!::read(wake_, &count, sizeof count);
  if ((ready[1].revents & POLLIN) != 0) accept();
  std::vector<Event> events;
  for (Connection& connection : connections_) {
    if (connection.ended) continue;
    for (std::string& line : connection.socket.receive()) {
      if (connection.rank >= 0)
        events.push_back({connection.rank, std::move(line)});
      else
        admit(connection, line);
    }
    connection.ended = connection.socket.has_ended();
    if (connection.ended && connection.rank >= 0) events.push_back({connection.rank, std::nullopt});
  }
  const auto is_stranger = [](const Connection& connection) { return connection.rank < 0; };
  const auto joined = std::count_if(connections_.begin(), connections_.end(), std::not_fn(is_stranger));
  const bool complete = joined == size_ - 1;
  connections_.remove_if([&](const Connection& connection) {
    return is_stranger(connection) && (complete || connection.ended);
  });
  if (complete && listening_ >= 0) {
    ::close(listening_);
    listening_ = -1;
  }
  return events;
}

void RankConnections::accept() {
  const int connected = retry([&] { return ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC); });
  if (connected >= 0)
    connections_.push_back({LineSocket(connected), -1});
  else
    accept_after_ = std::chrono::steady_clock::now() + kAcceptAgain;
}

void RankConnections::admit(Connection& connection, const std::string& line) const {
  std::istringstream words(line);
  std::string secret;
  int64_t rank = -1;
  if (words >> secret >> rank && secret == secret_ && rank > 0 && rank < size_) connection.rank = rank;
}

void RankConnections::wake() {
  const uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof one);
}

void RankConnections::send(const std::string& line) {
  for (Connection& connection : connections_) {
    if (connection.rank >= 0) connection.socket.send(line);
  }
}

void RankConnections::offer(const std::string& line) {
  for (Connection& connection : connections_) {
    if (connection.rank >= 0 && connection.socket.is_idle()) connection.socket.send(line);
  }
}

void RankConnections::finish() {
  for (Connection& connection : connections_) connection.socket.finish();
}

void RankConnections::finish(int64_t rank) {
  for (Connection& connection : connections_) {
    if (connection.rank == rank) connection.socket.finish();
  }
}

bool RankConnections::any_open(int64_t except) const {
  return std::any_of(connections_.begin(), connections_.end(), [&](const Connection& connection) {
    return !connection.ended && connection.rank != except;
  });
}

}  // namespace dtopp::distributed
