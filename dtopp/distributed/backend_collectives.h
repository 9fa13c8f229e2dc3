// Implements Collectives over one of torch's process groups.
//
// Throws:        RankLost or ResourceError when the backend throws, as BackendFailure selects
// Collective:    every rank of the backend, in the same order
#pragma once

#include <chrono>

#include "dtopp/distributed/collectives.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace dtopp::distributed {
// The meaning of an exception from a backend.
enum class BackendFailure {
  kOfOthers,  // another rank or the connection to it failed: RankLost
  kOfDevice,  // this rank's device failed, which other ranks do not observe: ResourceError
};

// Wraps `backend`, which the result must own alone: torch matches its collectives by their order.
//
// `who` starts every error message: the rank, and the group if there are several. The destructor waits until
// host collectives in flight have finished or failed.
std::unique_ptr<Collectives> make_backend_collectives(c10::intrusive_ptr<c10d::Backend> backend,
                                                      std::string who,
                                                      BackendFailure failure = BackendFailure::kOfOthers);

// Ranks 0 to size - 1.
std::vector<int64_t> all_ranks(int64_t size);
// The EP group of `rank`: `ep_size` consecutive ranks. Rank 5 with EP size 4: 4, 5, 6, 7.
std::vector<int64_t> ep_ranks(int64_t rank, int64_t ep_size);
// The EDP group of `rank`: of ranks 0 to size - 1, those with the same EP rank, which hold the same experts.
// Rank 5 of 8 with EP size 4: 1, 5. Throws c10::Error unless `ep_size` divides `size`.
std::vector<int64_t> edp_ranks(int64_t rank, int64_t ep_size, int64_t size);

struct GlooOptions {
  // A name or an address of this host under which other ranks reach it ("127.0.0.1" if all are local). Empty:
  // the host's own name.
  std::string host{};
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // of a collective and of connecting
};

// Connects the group `ranks`, which is ascending and contains `rank`, over TCP for collectives on CPU tensors
// (Gloo). Returns when all ranks are connected; a SingleRank for a group of one.
//
// Every rank of the group calls it with the same name. Groups of the same name must be disjoint.
//
// Throws:        UsageError if the host has no address; ResourceError if a rank does not connect in time
std::unique_ptr<Collectives> make_gloo_collectives(const c10::intrusive_ptr<c10d::Store>& store,
                                                   const std::string& name, int64_t rank,
                                                   const std::vector<int64_t>& ranks,
                                                   const GlooOptions& options);

}  // namespace dtopp::distributed
