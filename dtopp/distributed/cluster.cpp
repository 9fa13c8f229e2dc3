#include "dtopp/distributed/cluster.h"

#include <csignal>
#include <cstdio>

#include <netdb.h>
#include <nlohmann/json.hpp>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "dtopp/base/cpu_cores.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/device/device.h"
#include "dtopp/distributed/rendezvous.h"

namespace dtopp::distributed {
namespace {

std::string number_of(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> text{};
  const bool found =
      ::getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  return found ? text.data() : "";
}

// connect() on a datagram socket only looks up the route.
std::optional<Route> route_of(const addrinfo& to) {
  const int descriptor = ::socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return std::nullopt;
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  auto* address = reinterpret_cast<sockaddr*>(&own);
  const bool found = ::connect(descriptor, to.ai_addr, to.ai_addrlen) == 0 &&
                     ::getsockname(descriptor, address, &length) == 0;
  ::close(descriptor);
  if (!found) return std::nullopt;
  return Route{number_of(address, length), number_of(to.ai_addr, to.ai_addrlen)};
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

// Rank 0 publishes {"ranks": ["{record}", …]} or {"error": "…"} here.
constexpr char kListKey[] = "ranks";

std::string key_of(int64_t rank) { return "rank/" + std::to_string(rank); }

std::string own_host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.front() == '\0' ? "unknown" : name.data();
}

std::string no_answer(const std::string& rank, const c10d::Store& store) {
  return "no answer from " + rank + " within " + std::to_string(store.getTimeout().count() / 1000) +
         " s; check that every rank was started";
}

void wait_for(c10d::Store& store, const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  wait_in_slices(timeout, std::chrono::milliseconds(500),
                 [&](std::chrono::milliseconds time) { store.wait(keys, time); });
}

// Returns the list that rank 0 publishes. One timeout limits the wait for all ranks.
std::string collect(c10d::Store& store, int64_t size, const RankRecord& mine) {
  ordered_json list;
  list["ranks"].push_back(mine.to_json());
  std::vector<std::string> keys;
  for (int64_t rank = 1; rank < size; ++rank) keys.push_back(key_of(rank));
  try {
    wait_for(store, keys, store.getTimeout());
    for (const std::string& key : keys) list["ranks"].push_back(store.get_to_str(key));
  } catch (const StoppedEarly&) {
    throw;
  } catch (const std::exception&) {
    const auto missing =
        std::ranges::find_if(keys, [&](const std::string& key) { return !store.check({key}); });
    if (missing == keys.end()) throw;
    const std::string rank = "rank " + std::to_string(missing - keys.begin() + 1);
    list = ordered_json::object();
    list["error"] = no_answer(rank, store);
  }
  return dump_json(list);
}

using std::chrono::milliseconds;

constexpr char kLoopback[] = "127.0.0.1";
constexpr char kLostKey[] = "lost";

// After a failed collective, a rank waits this long for the watcher to find the lost rank.
constexpr milliseconds kPatience{3000};

// A rank waits this long for the same error of another rank before it prints its own.
constexpr milliseconds kSameError{500};

// The same before the ranks have joined: they may start at different times.
constexpr milliseconds kEarlyError{3000};

// Ends without waiting for collectives that other ranks will not finish.
[[noreturn]] void end_silently(ExitStatus status) {
  std::fflush(nullptr);
  _exit(static_cast<int>(status));
}

}  // namespace

std::optional<Route> route_to(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(host.c_str(), "1", &hints, &found) != 0) return std::nullopt;
  std::optional<Route> route;
  for (const addrinfo* to = found; to && !route; to = to->ai_next) route = route_of(*to);
  ::freeaddrinfo(found);
  return route;
}

std::string own_address(const std::vector<std::optional<Route>>& routes, size_t rank) {
  if (!routes[rank]) return "";
  if (!is_loopback(routes[rank]->own)) return routes[rank]->own;
  for (const std::optional<Route>& route : routes)
    if (route && !is_loopback(route->remote)) return route->remote;
  return routes[rank]->own;
}

std::string RankRecord::to_json() const {
  ordered_json json = {{"host", host}, {"version", version}};
  if (route) json["route"] = {{"own", route->own}, {"remote", route->remote}};
  return dump_json(json);
}

RankRecord RankRecord::from_json(const std::string& text) {
  const JsonFields fields(text, "a rank's record");
  RankRecord record{fields.text("host"), std::nullopt, fields.text("version")};
  if (fields.has("route")) {
    const JsonFields route = fields.object("route");
    record.route = Route{route.text("own"), route.text("remote")};
  }
  return record;
}

std::vector<RankRecord> exchange_records(c10d::Store& store, int64_t rank, int64_t size,
                                         const RankRecord& mine) {
  std::string list;
  if (rank == 0) {
    list = collect(store, size, mine);
    store.set(kListKey, list);
  } else {
    store.set(key_of(rank), mine.to_json());
    try {
      // Rank 0 waits for the other ranks as long as this rank does, and then publishes an error.
      wait_for(store, {kListKey}, store.getTimeout() + std::chrono::seconds(10));
      list = store.get_to_str(kListKey);
    } catch (const StoppedEarly&) {
      throw;
    } catch (const std::exception&) {
      throw ResourceError(no_answer("rank 0", store));
    }
  }
  const JsonFields fields(list, "the list of ranks");
  if (fields.has("error")) throw ResourceError(fields.text("error"));
  std::vector<RankRecord> records;
  for (const std::string& record : fields.texts("ranks")) records.push_back(RankRecord::from_json(record));
  if (std::ssize(records) != size)
    throw DataError("the list of ranks: ranks: ", records.size(), " records for ", size, " ranks");
  return records;
}

int64_t count_nodes(const std::vector<RankRecord>& ranks, int64_t local_size) {
  const auto size = std::ssize(ranks);
  for (int64_t rank = 0; rank < size; ++rank)
    if (ranks[rank].host != ranks[rank / local_size * local_size].host) return 1;
  return size % local_size == 0 ? size / local_size : 1;
}

void check_versions(const std::vector<RankRecord>& ranks) {
  const auto other = std::ranges::find_if(
      ranks, [&](const RankRecord& rank) { return rank.version != ranks.front().version; });
  if (other == ranks.end()) return;
  throw RanksDiffer(ExitStatus::kUsage, "rank ", other - ranks.begin(), " runs another dtopp than rank 0 (",
                    other->version, ", rank 0 ", ranks.front().version,
                    "); install the same version on all hosts");
}

Cluster::Cluster(launch::LaunchEnvironment environment, std::string (*version)())
    : environment_(std::move(environment)), version_(version), local_rank_(environment_.local_rank) {
  if (environment_.alone()) return;
  configure_transport();
  // If torchrun's agent dies, no process supervises or restarts its ranks. They receive SIGTERM, save and
  // stop.
  if (environment_.launcher_holds_store && environment_.launcher == launch::Launcher::kEnvironment)
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
}

Cluster::~Cluster() = default;

void Cluster::open_store(milliseconds timeout) {
  if (store_) return;
  store_ = make_store({.host = environment_.master_addr,
                       .port = environment_.master_port,
                       .is_server = is_server(),
                       .loopback_only = is_local(),
                       .prefix = environment_.store_prefix,
                       .timeout = timeout})
               .store;
}

void Cluster::join(std::chrono::seconds timeout) {
  if (environment_.alone()) return;
  open_store(StoreOptions().timeout);
  const std::vector<RankRecord> ranks =
      exchange_records(*store_, rank(), size(), {own_host(), route_to(environment_.master_addr), version_()});
  const auto own = ranks.begin() + rank();
  const auto is_here = [&](const RankRecord& other) { return other.host == own->host; };
  const bool is_reported = environment_.local_world_size > 0;
  local_size_ = is_reported ? environment_.local_world_size : std::ranges::count_if(ranks, is_here);
  local_rank_ = is_reported ? environment_.local_rank : std::count_if(ranks.begin(), own, is_here);
  nodes_ = count_nodes(ranks, local_size_);
  std::vector<std::string> hosts;
  std::vector<std::optional<Route>> routes;
  for (const RankRecord& rank : ranks) {
    hosts.push_back(rank.host);
    routes.push_back(rank.route);
  }
  address_ = is_local() ? kLoopback : own_address(routes, static_cast<size_t>(rank()));
  // Gloo's timeout is longer than the watcher's, so that the watcher, which has more details, reports first.
  collective_timeout_ = std::max<milliseconds>(GlooOptions().timeout, 2 * timeout);
  if (environment_.launcher == launch::Launcher::kOwn) report_ = store_->clone();
  WatcherOptions watched{.rank = rank(),
                         .hosts = std::move(hosts),
                         .address = is_local() ? kLoopback : environment_.master_addr,
                         .loopback_only = is_local(),
                         .limits = {.silent = static_cast<double>(timeout.count())}};
  watcher_ =
      std::make_unique<Watcher>(store_, std::move(watched), counts_, static_cast<WatchedProcess&>(*this));
  check_versions(ranks);
}

const ProcessGroups& Cluster::connect(const at::Device& device, int64_t ep_size) {
  groups_.device = device;
  if (environment_.alone()) return groups_;
  const ParallelDims dims = ParallelDims{size(), nodes_, ep_size}.with_nested_nodes();
  try {
    groups_ = make_process_groups(store_, rank(), dims, {.host = address_, .timeout = collective_timeout_},
                                  counts_);
  } catch (...) {
    watcher_->await_loss(kPatience);  // another rank may have failed first
    throw;
  }
  if (local_size_ > 1) at::set_num_threads(static_cast<int>(share_of_cores(local_size_)));
  check_devices(device::device_identity(device), *groups_.world);
  if (device.is_cpu()) return groups_;
  devices_ = std::make_unique<DeviceGroups>(groups_, store_, device, collective_timeout_, counts_);
  watched_devices_ = devices_.get();
  return groups_;
}

void Cluster::run(const std::function<void()>& body) {
  if (environment_.alone()) return body();
  try {
    body();
    if (devices_) devices_->finish();
    if (watcher_) watcher_->leave();
  } catch (const RankLost&) {
    if (watcher_) {
      watcher_->await_loss(kPatience);
      watcher_->leave();
    }
    if (environment_.launcher == launch::Launcher::kOwn) end_silently(ExitStatus::kResource);
    throw;
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    const bool is_early = dynamic_cast<const StoppedEarly*>(&error) != nullptr;
    const bool is_of_all =
        !is_early && (failure.status == ExitStatus::kStopped || failure.status == ExitStatus::kNumerical ||
                      dynamic_cast<const RanksDiffer*>(&error) != nullptr);
    if (watcher_ && is_of_all) watcher_->leave();
    // Rank 0's watcher prints an early stop of another rank. Before it exists, dtopp's own launcher has a
    // store in which ranks agree on one line.
    const bool can_agree = !is_early || (!watcher_ && environment_.launcher == launch::Launcher::kOwn);
    const bool is_silent = is_of_all || !can_agree ? !is_main_rank() : !prints(failure.message);
    if (watcher_ && !is_of_all) watcher_->fail(static_cast<int>(failure.status), failure.message);
    // The other ranks may still read the store, or look for this error in it.
    if (is_server() && failure.status != ExitStatus::kStopped)
      std::this_thread::sleep_for(watcher_ ? 2 * kSameError : kEarlyError);
    if (is_silent) end_silently(failure.status);
    throw;
  }
}

// Rank 0 prints its errors, another rank those that rank 0 does not have. Of several such ranks, the first
// one prints.
bool Cluster::prints(const std::string& message) {
  const std::string key = "error/" + hash_bytes(std::as_bytes(std::span(message)));
  try {
    open_store(kEarlyError);
    if (is_main_rank()) {
      store_->set(key, std::string("rank 0"));
      return true;
    }
    store_->wait({key}, watcher_ ? kSameError : kEarlyError);
    return false;
  } catch (const std::exception&) {  // no such key, or no store
  }
  try {
    return !store_ || store_->add(key + "/others", 1) == 1;
  } catch (const std::exception&) {
    return true;
  }
}

// Called from the watcher thread.
void Cluster::on_loss(const LostRank& lost) {
  if (lost.status == static_cast<int64_t>(ExitStatus::kStopped)) {
    if (is_main_rank()) std::fprintf(stderr, "dtopp: %s\n", lost.line().c_str());
    _exit(static_cast<int>(ExitStatus::kStopped));
  }
  if (environment_.launcher == launch::Launcher::kOwn)
    report_->compareSet(kLostKey, "", lost.to_text());  // the first report names the cause of the others
  else
    std::fprintf(stderr, "dtopp: error: %s\n", lost.line().c_str());
  _exit(static_cast<int>(ExitStatus::kResource));  // no flush: it could block on another thread's write
}

std::string Cluster::device_failure() {
  const DeviceGroups* const devices = watched_devices_;
  return devices != nullptr ? devices->failure() : "";
}

std::optional<LostRank> reported_loss(c10d::Store& store) {
  if (!store.check({kLostKey})) return std::nullopt;
  return LostRank::from_text(store.get_to_str(kLostKey));
}

}  // namespace dtopp::distributed
