// Connections that join every rank of a run with rank 0 and carry lines of text both ways, for the watchers
// (watcher.h). From one thread but for wake().
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

namespace dtopp {

class RankConnections {
 public:
  // Of this rank: rank 0 listens, on 127.0.0.1 alone where that is asked for, until all others have come, and
  // tells the store where; the others connect to it at `address` and show what they read there. Returns
  // without waiting for the others, but rank 0. std::exception where something of it fails.
  RankConnections(c10d::Store& store, int64_t rank, int64_t size, const std::string& address,
                  bool loopback_only);
  ~RankConnections();
  RankConnections(const RankConnections&) = delete;
  RankConnections& operator=(const RankConnections&) = delete;

  struct Event {
    int64_t from;
    std::optional<std::string> line;  // none: it will send no more, or is gone
  };
  // What has come, each rank's in order; waits for something up to `patience`.
  std::vector<Event> wait(std::chrono::milliseconds patience);
  // Makes a wait(), or the next one, return at once. From any thread.
  void wake();

  // To all others.
  void send(const std::string& line);
  // To those who have taken everything before; the others go without.
  void offer(const std::string& line);
  // Says that no line will follow, so that the other ends find that.
  void finish();
  void finish(int64_t rank);
  // Whether any rank may send something more, one left aside.
  bool any_open(int64_t except) const;

 private:
  struct Connection {
    LineSocket socket;
    int64_t rank;  // -1: it has not shown that it is one
    bool ended = false;
  };
  void accept();
  void admit(Connection& connection, const std::string& line) const;

  int64_t size_;
  std::string secret_;
  std::list<Connection> connections_;
  int listening_ = -1, wake_ = -1;
};

}  // namespace dtopp
