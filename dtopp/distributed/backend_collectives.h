// Collectives over one of torch's process groups.
#pragma once

#include "dtopp/distributed/collectives.h"

namespace c10d {
class Backend;
}  // namespace c10d

namespace dtopp {

// `who` begins the errors' messages: the rank, and the group where it is one of several. The backend may
// serve no one else: its collectives are matched by their order. Destroying them waits until those in flight
// have ended or failed.
std::unique_ptr<Collectives> make_backend_collectives(c10::intrusive_ptr<c10d::Backend> backend,
                                                      std::string who);

}  // namespace dtopp
