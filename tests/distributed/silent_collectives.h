// One rank of a group of any size whose other ranks do not exist. It sends nothing and receives nothing.
#pragma once

#include "dtopp/distributed/collectives.h"

namespace dtopp::distributed {

class SilentCollectives final : public Collectives {
 public:
  using Collectives::Collectives;
  Pending start(const Collective&) override { return {}; }
};

}  // namespace dtopp::distributed
