#include "dtopp/distributed/rank_exchange.h"

#include <algorithm>
#include <array>
#include <chrono>

#include <netdb.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/json.h"
#include "dtopp/base/stop.h"
#include "dtopp/distributed/rank_agreement.h"

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

namespace {

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

// Waits in slices, between which a stop ends the wait.
void wait_for(c10d::Store& store, const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kSlice{500};
  const Clock::time_point end = Clock::now() + timeout;
  for (;;) {
    const Clock::time_point begin = Clock::now();
    try {
      return store.wait(keys, std::min(kSlice, std::chrono::ceil<std::chrono::milliseconds>(end - begin)));
    } catch (const std::exception&) {
      end_if_stopped();
      const Clock::time_point now = Clock::now();
      if (now >= end || now - begin < kSlice / 2) throw;  // an error before the slice's end is no timeout
    }
  }
}

// Returns the list that rank 0 publishes. One timeout limits the wait for all ranks.
std::string collect(c10d::Store& store, int64_t size, const RankRecord& mine) {
  nlohmann::ordered_json list;
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
    list = nlohmann::ordered_json::object();
    list["error"] = no_answer(rank, store);
  }
  return dump_json(list);
}

}  // namespace

std::string RankRecord::to_json() const {
  nlohmann::ordered_json json = {{"host", host}, {"version", version}};
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

RankRecord own_record(const std::string& master_addr, const std::string& version) {
  return {own_host(), route_to(master_addr), version};
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
  if (static_cast<int64_t>(records.size()) != size)
    throw DataError("the list of ranks: ranks: " + std::to_string(records.size()) + " records for " +
                    std::to_string(size) + " ranks");
  return records;
}

int64_t count_nodes(const std::vector<RankRecord>& ranks, int64_t local_size) {
  const auto size = static_cast<int64_t>(ranks.size());
  for (int64_t rank = 0; rank < size; ++rank) {
    const int64_t first = rank / local_size * local_size;
    if (ranks[static_cast<size_t>(rank)].host != ranks[static_cast<size_t>(first)].host) return 1;
  }
  return size % local_size == 0 ? size / local_size : 1;
}

void check_versions(const std::vector<RankRecord>& ranks) {
  const auto other = std::ranges::find_if(
      ranks, [&](const RankRecord& rank) { return rank.version != ranks.front().version; });
  if (other == ranks.end()) return;
  throw RanksDiffer(ExitStatus::kUsage, "rank " + std::to_string(other - ranks.begin()) +
                                            " runs another dtopp than rank 0 (" + other->version +
                                            ", rank 0 " + ranks.front().version +
                                            "); install the same version on all hosts");
}

std::vector<std::string> hosts_of(const std::vector<RankRecord>& ranks) {
  std::vector<std::string> hosts;
  for (const RankRecord& rank : ranks) hosts.push_back(rank.host);
  return hosts;
}

std::vector<std::optional<Route>> routes_of(const std::vector<RankRecord>& ranks) {
  std::vector<std::optional<Route>> routes;
  for (const RankRecord& rank : ranks) routes.push_back(rank.route);
  return routes;
}

}  // namespace dtopp::distributed
