// Connects every rank of a run with rank 0 to exchange lines of text, for the watchers (watcher.h).
//
// Only wake() is thread-safe.
//
// Throws:        std::exception if a socket or the store fails
// Collective:    the constructor, on every rank
#pragma once

#include <chrono>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/distributed/membership/line_socket.h"
#include "dtopp/ops/core/torch.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace dtopp::distributed {

class RankConnections {
 public:
  // Rank 0 listens, on 127.0.0.1 only if `loopback_only`, until every other rank has connected. It writes its
  // port and a secret to the store. The other ranks wait for this entry, connect to `address` and send the
  // secret.
  //
  // Rank 0 does not wait for the other ranks here; wait() accepts them later.
  RankConnections(c10d::Store& store, int64_t rank, int64_t size, const std::string& address,
                  bool loopback_only);
  ~RankConnections();
  RankConnections(const RankConnections&) = delete;
  RankConnections& operator=(const RankConnections&) = delete;

  struct Event {
    int64_t from;
    std::optional<std::string> line;  // nullopt: the rank sends no more lines, or its process has ended
  };
  // Waits up to `patience` for events and returns them, in order per rank.
  std::vector<Event> wait(std::chrono::milliseconds patience);
  // Makes the current or the next wait() return at once. Thread-safe.
  void wake();

  // Sends a line to all connected ranks.
  void send(const std::string& line);
  // Sends a line to the ranks that have accepted all earlier bytes, and skips the others.
  void offer(const std::string& line);
  // Ends this direction, to all ranks or to one. The other ends then receive an Event without a line.
  void finish();
  void finish(int64_t rank);
  // Whether a connection other than the one to `except` can still receive lines.
  bool any_open(int64_t except) const;

 private:
  struct Connection {
    LineSocket socket;
    int64_t rank;  // -1 until it has sent the secret
    bool ended = false;
  };
  void accept();
  void admit(Connection& connection, const std::string& line) const;

  int64_t size_;
  std::string secret_;
  std::list<Connection> connections_;
  int listening_ = -1, wake_ = -1;
  std::chrono::steady_clock::time_point accept_after_{};  // not before, because the last call failed
};

}  // namespace dtopp::distributed
