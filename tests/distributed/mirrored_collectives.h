// One rank of a group of any size whose other ranks do not exist. Each of them appears to send the rows that
// this rank sends to it. If the parts differ in size, the rank receives zeros.
#pragma once

#include "dtopp/distributed/collectives.h"

namespace dtopp::distributed {

class MirroredCollectives final : public Collectives {
 public:
  using Collectives::Collectives;
  Pending start(const Collective& collective) override {
    if (collective.kind != Collective::Kind::kAllToAll) return {};
    if (collective.out.sizes() == collective.in.sizes())
      collective.out.copy_(collective.in);
    else
      collective.out.zero_();
    return {};
  }
};

}  // namespace dtopp::distributed
