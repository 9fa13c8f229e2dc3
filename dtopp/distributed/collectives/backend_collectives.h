// Collectives over one of torch's process groups.
#pragma once

#include "dtopp/distributed/collectives/collectives.h"

namespace c10d {
class Backend;
}  // namespace c10d

namespace dtopp {

// What it means that a backend throws.
enum class BackendFailure {
  kOfOthers,  // a rank or the way to it is gone: RankLost
  kOfDevice,  // this rank's device failed, which others do not see: ResourceError
};

// `who` begins the errors' messages: the rank, and the group where it is one of several. The backend may
// serve no one else: its collectives are matched by their order. Destroying them waits until those in flight
// on the host have ended or failed.
std::unique_ptr<Collectives> make_backend_collectives(c10::intrusive_ptr<c10d::Backend> backend,
                                                      std::string who,
                                                      BackendFailure failure = BackendFailure::kOfOthers);

}  // namespace dtopp
