// The ranks of a run, from this process's start to its end: their store, their watcher and their process
// groups.
//
//   Cluster cluster(environment, version);
//   cluster.run([&] {
//     cluster.join(timeout);                              // finds the other ranks, watches them
//     const ProcessGroups& groups = cluster.connect(device, ep_size);
//     ...                                                 // collectives
//   });                                                   // reports an error to the other ranks
//
// A process without a launcher is its only rank; it opens no connection.
//
// Collective:    join, connect and the end of run, on every rank
#pragma once

#include <functional>

#include "dtopp/distributed/failure.h"
#include "dtopp/distributed/process_groups.h"
#include "dtopp/distributed/watcher.h"
#include "dtopp/launch/launch_environment.h"
#include "dtopp/ops/core/torch.h"

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

struct RankRecord {
  std::string host{};
  std::optional<Route> route{};  // to rank 0's host
  std::string version{};         // of the program

  std::string to_json() const;
  // Throws DataError if the text is not a record.
  static RankRecord from_json(const std::string& text);
};

// Returns the records of all ranks, in rank order. Collective, before the ranks have connections: rank 0
// reads the records of all ranks and publishes one list, so that the store answers two requests per rank.
// Throws ResourceError, on all ranks with the same message, if a rank sends none within the store's timeout;
// StoppedEarly at a stop within a StopScope.
std::vector<RankRecord> exchange_records(c10d::Store& store, int64_t rank, int64_t size,
                                         const RankRecord& mine);

// The number of machines, each with `local_size` consecutive ranks; 1 if machines hold other sets of ranks.
int64_t count_nodes(const std::vector<RankRecord>& ranks, int64_t local_size);

// Throws RanksDiffer, on all ranks with the same message, if a rank runs another version than rank 0.
void check_versions(const std::vector<RankRecord>& ranks);

class Cluster final : private WatchedProcess {
 public:
  // version() identifies the program, which must be the same on all ranks. Call the constructor before the
  // process has threads, because it sets environment variables (configure_transport).
  Cluster(launch::LaunchEnvironment environment, std::string (*version)());
  ~Cluster() override;

  // Calls `body` and reports its exception to the other ranks, then throws it.
  //
  // Only one of the ranks with the same error throws: rank 0 if it has the error. The others end here,
  // silently, with the same status.
  //
  // If another rank is lost, this process ends immediately with status 5, without waiting for its threads.
  // The launcher of --processes prints the loss; without that launcher, every rank prints it.
  void run(const std::function<void()>& body);

  // Finds the other ranks and watches them. A rank that is silent for `timeout` is lost
  // (watcher.h).
  //
  // Throws: ResourceError if the other ranks cannot be reached; RanksDiffer if they run different programs
  void join(std::chrono::seconds timeout);
  // Connects the process groups, on the CPU and on `device`. Rank 0's EP size applies to all ranks. The
  // default number of threads becomes this rank's share of the machine's cores.
  //
  // Throws: RanksDiffer if the ranks' devices are not compatible
  const ProcessGroups& connect(const at::Device& device, int64_t ep_size);
  const ProcessGroups& groups() const { return groups_; }  // after connect()
  // Sets the step and the activity that other ranks name if this one is lost (RankState).
  void begin(int64_t step, const char* activity) {
    if (watcher_) watcher_->begin(step, activity);
  }

  int64_t rank() const { return environment_.rank; }
  int64_t size() const { return environment_.world_size; }
  bool is_main_rank() const { return rank() == 0; }
  // This rank's index on its machine, and the number of ranks there. After join().
  int64_t local_rank() const { return local_rank_; }
  int64_t local_size() const { return local_size_; }
  // The number of machines, 1 if their ranks are not consecutive or not equally many. After join().
  int64_t nodes() const { return nodes_; }

 private:
  void on_loss(const LostRank& lost) override;
  std::string device_failure() override;
  void open_store(std::chrono::milliseconds timeout);
  // Whether this process serves the store, which ends with it.
  bool is_server() const { return is_main_rank() && !environment_.launcher_holds_store; }
  bool is_local() const { return environment_.local_world_size == environment_.world_size; }
  // Whether this rank prints an error that other ranks may have too.
  bool prints(const std::string& message);

  launch::LaunchEnvironment environment_;
  std::string (*version_)();
  int64_t local_rank_ = 0, local_size_ = 1, nodes_ = 1;
  std::string address_;  // under which the other ranks reach this one
  std::chrono::milliseconds collective_timeout_{};
  c10::intrusive_ptr<c10d::Store> store_, report_;  // report_ is the watcher thread's own connection
  std::shared_ptr<CollectiveCounts> counts_ = std::make_shared<CollectiveCounts>();
  ProcessGroups groups_;
  std::unique_ptr<DeviceGroups> devices_;
  std::atomic<const DeviceGroups*> watched_devices_ = nullptr;
  std::unique_ptr<Watcher> watcher_;  // last: its thread uses the others
};

// The loss that a rank reported to the launcher of --processes, which serves `store`.
std::optional<LostRank> reported_loss(c10d::Store& store);

}  // namespace dtopp::distributed
