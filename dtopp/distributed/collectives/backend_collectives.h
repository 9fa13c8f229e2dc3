// Implements Collectives over one of torch's process groups.
//
// Throws:        RankLost or ResourceError when the backend throws, as BackendFailure selects
// Collective:    every rank of the backend, in the same order
#pragma once

#include "dtopp/distributed/collectives/collectives.h"

namespace c10d {
class Backend;
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

}  // namespace dtopp::distributed
