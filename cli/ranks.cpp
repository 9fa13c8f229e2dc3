#include "cli/ranks.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <sys/prctl.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "cli/failure.h"
#include "cli/program_version.h"
#include "cli/stop_signals.h"
#include "dtopp/base/cpu_cores.h"
#include "dtopp/device/device.h"
#include "dtopp/distributed/collectives/counting_collectives.h"
#include "dtopp/distributed/collectives/gloo_collectives.h"
#include "dtopp/distributed/groups/device_groups.h"
#include "dtopp/distributed/groups/rank_agreement.h"
#include "dtopp/distributed/membership/own_address.h"
#include "dtopp/distributed/membership/rendezvous.h"
#include "dtopp/distributed/membership/watcher.h"
#include "dtopp/launch/child_process.h"
#include "dtopp/launch/local_ranks.h"

namespace dtopp::cli {
namespace {

// Returns the command line of this process. Commands receive only their parsed options.
std::vector<std::string> command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

std::vector<std::string> without_processes(std::vector<std::string> arguments) {
  const std::string option = "--processes";
  for (size_t i = 0; i < arguments.size();) {
    const auto at = arguments.begin() + static_cast<std::ptrdiff_t>(i);
    if (arguments[i] == option)
      arguments.erase(at, at + std::min<std::ptrdiff_t>(2, arguments.end() - at));
    else if (arguments[i].starts_with(option + "="))
      arguments.erase(at);
    else
      ++i;
  }
  return arguments;
}

std::string own_host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.front() == '\0' ? "unknown" : name.data();
}

// Exchanges one string per rank through the store. Returns the strings of all ranks, in rank order.
std::vector<std::string> exchange(c10d::Store& store, const LaunchEnvironment& environment,
                                  const std::string& what, const std::string& mine) {
  const auto key = [&](int64_t rank) { return what + "/" + std::to_string(rank); };
  store.set(key(environment.rank), mine);
  std::vector<std::string> all;
  for (int64_t rank = 0; rank < environment.world_size; ++rank) {
    try {
      all.push_back(store.get_to_str(key(rank)));
    } catch (const std::exception&) {
      throw ResourceError("rank " + std::to_string(environment.rank) + ": no answer from rank " +
                          std::to_string(rank) + " within " +
                          std::to_string(store.getTimeout().count() / 1000) +
                          " s; check that every rank was started");
    }
  }
  return all;
}

std::string exchanged_address(c10d::Store& store, const LaunchEnvironment& environment) {
  const std::optional<Route> mine = route_to(environment.master_addr);
  std::vector<std::optional<Route>> routes;
  for (const std::string& text :
       exchange(store, environment, "route", mine ? mine->own + " " + mine->remote : "")) {
    const size_t space = text.find(' ');
    routes.push_back(text.empty() ? std::nullopt
                                  : std::optional(Route{text.substr(0, space), text.substr(space + 1)}));
  }
  return own_address(routes, static_cast<size_t>(environment.rank));
}

// Returns the number of consecutive ranks per machine, or the number of all ranks if machines hold other sets
// of ranks.
int64_t ranks_of_a_node(const std::vector<std::string>& hosts, int64_t ranks_here) {
  const auto size = static_cast<int64_t>(hosts.size());
  for (int64_t rank = 0; rank < size; ++rank) {
    const int64_t first = rank / ranks_here * ranks_here;
    if (hosts[static_cast<size_t>(rank)] != hosts[static_cast<size_t>(first)]) return size;
  }
  return ranks_here;
}

// Exits without waiting for collectives that other ranks will not finish.
[[noreturn]] void end_silently(ExitStatus status) {
  std::fflush(nullptr);
  _exit(static_cast<int>(status));
}

constexpr char kLoopback[] = "127.0.0.1";

// After a failed collective, a rank waits this long for the watcher to find the lost rank.
constexpr std::chrono::milliseconds kPatience{3000};

// The key in the store under which ranks report a lost rank to the launcher of --processes.
constexpr char kLostKey[] = "lost";

// Owns the connections of one rank: the store, the process groups and the watcher.
class Cluster {
 public:
  Cluster(const LaunchEnvironment& environment, const JoinOptions& join) : environment_(environment) {
    const bool local = environment.local_world_size == environment.world_size;
    store_ = make_store({.host = environment.master_addr,
                         .port = environment.master_port,
                         .is_server = !environment.launcher_holds_store && environment.rank == 0,
                         .loopback_only = local,
                         .prefix = environment.store_prefix})
                 .store;
    const std::vector<std::string> hosts = exchange(*store_, environment, "host", own_host());
    const auto own = hosts.begin() + static_cast<std::ptrdiff_t>(environment.rank);
    const int64_t ranks_here =
        environment.local_world_size > 0 ? environment.local_world_size : std::ranges::count(hosts, *own);
    if (environment.launcher == Launcher::kOwn) report_ = store_->clone();
    WatcherOptions watched{.rank = environment.rank,
                           .hosts = hosts,
                           .address = local ? kLoopback : environment.master_addr,
                           .loopback_only = local,
                           .limits = {.silent = static_cast<double>(join.timeout.count())}};
    watcher_ = std::make_unique<Watcher>(store_, std::move(watched), counts_,
                                         [this](const LostRank& lost) { end_for(lost); });
    gloo_.host = local ? kLoopback : exchanged_address(*store_, environment);
    // Gloo's timeout is longer than the watcher's, so that the watcher, which has more details, reports
    // first.
    gloo_.timeout = std::max<std::chrono::milliseconds>(gloo_.timeout, 2 * join.timeout);
    try {
      if (join.device)
        device_ = join.device(environment.local_world_size > 0 ? environment.local_rank
                                                               : std::count(hosts.begin(), own, *own));
      const int64_t ep_size = join.expert_parallel ? join.expert_parallel(device_) : 1;
      const ParallelDims dims =
          parallel_dims(environment.world_size, ep_size, ranks_of_a_node(hosts, ranks_here));
      groups_ = make_process_groups(store_, environment.rank, dims, gloo_, counts_);
      groups_.ranks_here = ranks_here;
    } catch (const std::exception& error) {
      const Failure failure = failure_of(error);
      watcher_->await_loss(kPatience);
      watcher_->fail(static_cast<int>(failure.status), failure.message);
      throw;
    }
  }

  // Call after all ranks have checked that they run the same program.
  void connect_devices() {
    check_devices(device_identity(device_), *groups_.world);
    if (device_.is_cpu()) return;
    devices_ = std::make_unique<DeviceGroups>(groups_, store_, device_, gloo_.timeout, counts_);
    watcher_->watch_device([this] { return devices_->failure(); });
  }
  // Call after the last collective operation.
  void finish() {
    if (devices_) devices_->finish();
  }

  const ProcessGroups& groups() const { return groups_; }
  Watcher& watcher() { return *watcher_; }

 private:
  [[noreturn]] void end_for(const LostRank& lost) {
    if (environment_.launcher == Launcher::kOwn)
      report_->set(kLostKey, lost.to_text());
    else
      std::fprintf(stderr, "dtopp: error: %s\n", lost.line().c_str());
    _exit(static_cast<int>(ExitStatus::kResource));  // no flush: it could block on another thread's write
  }

  const LaunchEnvironment& environment_;
  c10::intrusive_ptr<c10d::Store> store_, report_;  // report_ is the watcher thread's own connection
  std::shared_ptr<CollectiveCounts> counts_ = std::make_shared<CollectiveCounts>();
  GlooOptions gloo_;
  at::Device device_ = at::kCPU;
  std::unique_ptr<DeviceGroups> devices_;  // declared before watcher_, whose thread uses it
  std::unique_ptr<Watcher> watcher_;
  ProcessGroups groups_;
};

// Returns the launcher's message about the end of its ranks, with the lost rank that they reported, if any.
std::string end_message(const RanksEnd& end, c10d::Store& store) {
  if (end.message().empty() || !store.check({kLostKey})) return end.message();
  const auto lost = LostRank::from_text(store.get_to_str(kLostKey));
  if (!lost) return end.message();
  // The first rank to end ended only because it lost another one: name the lost rank instead.
  if (end.signal == 0 && end.status == static_cast<int>(ExitStatus::kResource)) return lost->line();
  return end.message() + (lost->rank == end.rank ? ", " + lost->location : "");
}

}  // namespace

LaunchEnvironment own_launch_environment() { return read_launch_environment(own_environment()); }

int run_processes(const LaunchEnvironment& environment, int64_t processes) {
  if (!environment.alone())
    throw UsageError("--processes: this process is one of " + std::to_string(environment.world_size) +
                     " ranks (rank " + std::to_string(environment.rank) + ") already; omit --processes");
  configure_transport();
  const StoreConnection store = make_store({.host = kLoopback, .is_server = true, .loopback_only = true});
  LocalRanks ranks;
  ranks.count = processes;
  ranks.arguments = without_processes(command_line());
  ranks.store_port = static_cast<uint16_t>(store.port);
  const RanksEnd end = run_local_ranks(ranks);
  const std::string message = end_message(end, *store.store);
  if (!message.empty()) std::fprintf(stderr, "dtopp: %s\n", message.c_str());
  return end.status;
}

void stop_rank_on_signals(const LaunchEnvironment& environment) {
  stop_on_signals(environment.launcher == Launcher::kOwn ? Impatience::kLauncher : Impatience::kSecondSignal);
}

void run_as_rank(const LaunchEnvironment& environment, const JoinOptions& options,
                 const std::function<void(const Rank&)>& body) {
  if (environment.alone()) {
    ProcessGroups alone;
    if (options.device) alone.device = options.device(/*local_rank=*/0);
    return body({.groups = alone});
  }
  configure_transport();
  // If torchrun's agent dies, no process supervises or restarts its ranks. They receive SIGTERM, save and
  // stop.
  if (environment.launcher_holds_store && environment.launcher == Launcher::kEnvironment)
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  Cluster cluster(environment, options);
  Watcher& watcher = cluster.watcher();
  if (cluster.groups().ranks_here > 1)
    at::set_num_threads(static_cast<int>(share_of_cores(cluster.groups().ranks_here)));
  try {
    check_program(program_version(), *cluster.groups().world);
    cluster.connect_devices();
    body({cluster.groups(), [&](int64_t step, const char* activity) { watcher.begin(step, activity); }});
    cluster.finish();
  } catch (const RankLost&) {
    watcher.await_loss(kPatience);
    watcher.leave();
    if (environment.launcher == Launcher::kOwn) end_silently(ExitStatus::kResource);
    throw;
  } catch (const RanksDiffer& error) {
    watcher.leave();
    if (environment.launcher == Launcher::kOwn && environment.rank > 0) end_silently(error.status());
    throw;
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    const bool of_all = failure.status == ExitStatus::kStopped || failure.status == ExitStatus::kNumerical;
    if (of_all)
      watcher.leave();
    else
      watcher.fail(static_cast<int>(failure.status), failure.message);
    if (of_all && environment.rank > 0) end_silently(failure.status);
    throw;
  }
}

}  // namespace dtopp::cli
