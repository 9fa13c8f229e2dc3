// Detects lost ranks from a thread in every process, so that no rank waits forever for a rank that has
// failed.
//
// Every rank has one TCP connection to rank 0. Both ends send their state every half second and after each
// change of activity. Example: rank 2 of 4 is killed.
//
// rank 1  <-- "at STATE" -->  rank 0     every half second, in both directions
// rank 2  --x                 rank 0     rank 2 is killed: its connection closes at once
// rank 1  <-- "lost 2 …" ---  rank 0     ranks 1 and 3 receive this; ranks 0, 1 and 3 call on_loss
//
// Rank 0 watches all ranks and reports a loss to the others. Each of the others detects the loss of rank 0
// itself. rank_records.h defines when a silent rank or a run without progress counts as lost. Time in which
// the watcher's own process did not run does not count: a whole job may be suspended and resumed.
//
// Throws:        ResourceError if rank 0 cannot be reached
// Collective:    the constructor, on every rank of the run
#pragma once

#include <condition_variable>
#include <list>
#include <thread>

#include "dtopp/distributed/collectives.h"
#include "dtopp/distributed/rank_records.h"
#include "dtopp/distributed/rendezvous.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp::distributed {

// Connects every rank of a run with rank 0 to exchange lines of text. Throws std::exception if a socket or
// the store fails.
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

  // With `skips_busy`, only to the ranks that have accepted all earlier bytes.
  void send(const std::string& line, bool skips_busy = false);
  // Ends this direction, to all ranks or to one. The other ends then receive an Event without a line.
  void finish(std::optional<int64_t> rank = {});
  // Whether a connection other than the one to `except` can still receive lines.
  bool any_open(int64_t except) const;

 private:
  struct Connection {
    Connection(int descriptor, int64_t rank) : socket(descriptor), rank(rank) {}
    LineSocket socket;
    int64_t rank;  // -1 until it has sent the secret
  };
  int64_t admitted(const std::string& line) const;

  int64_t size_;
  std::string secret_;
  std::list<Connection> connections_;
  int listening_ = -1, wake_ = -1;
  std::chrono::steady_clock::time_point accept_after_{};  // not before, because the last call failed
};

struct WatcherOptions {
  int64_t rank = 0;
  std::vector<std::string> hosts;  // by rank, for messages
  std::string address;             // a name or an address under which the other ranks reach rank 0
  bool loopback_only = false;      // all ranks are on this host: rank 0 listens on 127.0.0.1 only
  SilenceLimits limits{};
};

// The process that a watcher runs in. The watcher thread calls these functions.
class WatchedProcess {
 public:
  virtual ~WatchedProcess() = default;

  // Called at most once, when the run cannot continue.
  //
  // If the lost rank reported its own error, the call is delayed by up to one second, or until await_loss().
  // A rank that has its own error in that time ends with that error instead.
  virtual void on_loss(const LostRank& lost) = 0;
  // Polled about every half second. A nonempty text describes work that this rank's device will never finish
  // (DeviceGroups::failure); this rank then counts as lost.
  virtual std::string device_failure() { return ""; }
  // Processor time of this rank: by default the process's time without the watcher thread's.
  virtual double cpu_seconds();
};

class Watcher {
 public:
  // Rank 0 serves the other ranks, which read its port from the store. `process` must outlive this object.
  Watcher(const c10::intrusive_ptr<c10d::Store>& store, WatcherOptions options,
          std::shared_ptr<const CollectiveCounts> counts, WatchedProcess& process);
  ~Watcher() { leave(); }

  // Sets the step and the activity that RankState reports.
  void begin(int64_t step, const std::string& activity);

  // Ends this rank's watcher: leave() at the regular end of the run, fail() after this rank's own error,
  // which the other ranks receive. Returns when the message is delivered, after one second at most; on_loss
  // is not called afterwards. Only the first call has an effect.
  void leave() { end("left"); }
  void fail(int status, std::string message);

  // Call when this rank has detected the loss of another one. Waits up to `patience` for on_loss and returns
  // whether it was called.
  bool await_loss(std::chrono::milliseconds patience);

 private:
  bool is_first() const { return options_.rank == 0; }
  void run();
  void handle(const RankConnections::Event& event);
  // A line that this rank cannot read: it comes from another program or was damaged.
  void lose_sender(int64_t rank, const std::string& line);
  void lose(const LostRank& rank);
  RankState own_state();
  // Whether the thread ends: the run is over, this rank ends, or on_loss was called.
  bool finish();
  void send_last_message(const std::string& line);
  void end(const std::string& line);

  WatcherOptions options_;
  std::shared_ptr<const CollectiveCounts> counts_;
  WatchedProcess& process_;
  std::chrono::milliseconds interval_;

  // Used by the watcher thread only.
  RankConnections connections_;
  RankRecords records_;
  bool is_over_ = false;  // rank 0 has left
  std::optional<LostRank> lost_;
  std::chrono::steady_clock::time_point lost_at_;

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t step_ = 0;
  std::string activity_ = "start";
  std::atomic<bool> new_activity_ = false;  // not sent yet
  std::string last_message_;                // of this rank; empty until it ends
  bool has_detected_loss_ = false;          // this rank has detected the loss of another one
  bool called_ = false;                     // whether on_loss was called
  std::thread thread_;
};

}  // namespace dtopp::distributed
