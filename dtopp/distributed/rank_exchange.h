// Collects one record from every rank through the store, before the ranks have connections.
//
// Rank 0 reads the records of all ranks and publishes one list, so that the store answers two requests per
// rank.
//
// Collective:    exchange_records, on every rank
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/ops/core/torch.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace dtopp::distributed {

// Finds the address under which the other ranks reach this one.
//
// Collective:    no

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

// The record of this process.
RankRecord own_record(const std::string& master_addr, const std::string& version);

// Returns the records of all ranks, in rank order. Throws ResourceError, on all ranks with the same message,
// if a rank sends none within the store's timeout; StoppedEarly at a stop within a StopScope.
std::vector<RankRecord> exchange_records(c10d::Store& store, int64_t rank, int64_t size,
                                         const RankRecord& mine);

// The number of machines, each with `local_size` consecutive ranks; 1 if machines hold other sets of ranks.
int64_t count_nodes(const std::vector<RankRecord>& ranks, int64_t local_size);

// Throws RanksDiffer, on all ranks with the same message, if a rank runs another version than rank 0.
void check_versions(const std::vector<RankRecord>& ranks);

std::vector<std::string> hosts_of(const std::vector<RankRecord>& ranks);
std::vector<std::optional<Route>> routes_of(const std::vector<RankRecord>& ranks);

}  // namespace dtopp::distributed
