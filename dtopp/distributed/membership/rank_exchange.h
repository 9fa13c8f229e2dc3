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

#include "dtopp/distributed/membership/own_address.h"
#include "dtopp/ops/core/torch.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace dtopp::distributed {

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
