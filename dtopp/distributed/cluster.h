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

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/distributed/failure.h"
#include "dtopp/distributed/process_groups.h"
#include "dtopp/distributed/watcher.h"
#include "dtopp/launch/launch_environment.h"

namespace dtopp::distributed {
class Cluster final : private WatchedProcess {
 public:
  // version() identifies the program, which must be the same on all ranks. Call the constructor before the
  // process has threads, because it sets environment variables (configure_transport).
  Cluster(launch::LaunchEnvironment environment, std::string (*version)());
  ~Cluster() override;
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Calls `body` and reports its exception to the other ranks, then throws it.
  //
  // Only one of the ranks with the same error throws: rank 0 if it has the error. The others end here,
  // silently, with the same status.
  //
  // If another rank is lost, this process ends immediately with status 5, without waiting for its threads.
  // The launcher of --processes prints the loss; without that launcher, every rank prints it.
  void run(const std::function<void()>& body);

  // Finds the other ranks and watches them. A rank that is silent for `timeout` is lost
  // (membership/watcher.h).
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
  void begin(int64_t step, const char* activity);

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
