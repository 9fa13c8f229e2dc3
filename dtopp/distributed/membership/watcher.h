// Watches the ranks of a run from a thread beside each, so that none waits for ever for one that is gone.
//
// Every rank holds a connection to rank 0's watcher over which both say where they are, about every half
// second. A process that dies takes its connection along, which the other end finds at once; when it is
// silent or the run stands still, and for how long it may, says rank_records.h. Rank 0 tells the others of a
// rank it has lost; the loss of rank 0 each finds by itself. Time in which a watcher's own process did not
// run does not count: a whole job may be suspended and go on.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtopp/distributed/collectives/counting_collectives.h"
#include "dtopp/distributed/membership/rank_records.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace dtopp {

struct WatcherOptions {
  int64_t rank = 0;
  std::vector<std::string> hosts;  // of each rank, for messages
  std::string address;             // a name or an address under which rank 0 is reached
  bool loopback_only = false;      // where all ranks are on this host: rank 0 listens on 127.0.0.1 alone
  SilenceLimits limits{};
  // Processor time of this rank; the default is that of the process without the watcher's.
  std::function<double()> cpu_seconds{};
};

class Watcher {
 public:
  // Called once at most, from the watcher's thread, where the run cannot go on: at once, or where the lost
  // rank ended by an error of its own, once this rank has noticed or a second later, so that one with an
  // error of its own, too, can end by that.
  using OnLoss = std::function<void(const LostRank&)>;

  // Every rank calls it; rank 0 serves the others, whom the store tells where. ResourceError where rank 0
  // cannot be reached.
  Watcher(const c10::intrusive_ptr<c10d::Store>& store, WatcherOptions options,
          std::shared_ptr<const CollectiveCounts> counts, OnLoss on_loss);
  ~Watcher();  // leaves
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // Asked from now on, from the watcher's thread, about every half second: what this rank's device will never
  // finish, in words (DeviceGroups::failure). Then this rank is lost, and on_loss names it.
  void watch_device(std::function<std::string()> failure);

  // What this rank does from now on, for RankState.
  void begin(int64_t step, const std::string& activity);

  // This rank ends and has no part in what the others do: as they all end, or by an error of its own, which
  // they are told. Returns when that is said; on_loss will not be called any more. Only the first call
  // counts.
  void leave();
  void fail(int status, const std::string& message);

  // This rank has lost another one. Waits for on_loss to be called, `patience` at most; returns whether it
  // was.
  bool await_loss(std::chrono::milliseconds patience);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dtopp
