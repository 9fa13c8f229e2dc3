// A rank of a group of any size whose others are not there. They are taken to send it as many rows as it
// sends them, the same ones; where parts differ in size it gets zeros.
#pragma once

#include "dtopp/distributed/collectives/collectives.h"

namespace dtopp {

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

}  // namespace dtopp
