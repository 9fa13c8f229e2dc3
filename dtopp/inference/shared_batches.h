// What a model computes in batches, shared out among ranks. A batch is the same one at every number of ranks:
// the last bits of what is computed for one of its items depend on the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "dtopp/distributed/collectives/collectives.h"

namespace dtopp {

struct BatchHooks {
  std::function<void(uint64_t done)> progress;  // of all ranks together, about
  std::function<bool()> stop;                   // asked before each batch
};

// compute(b) for those of the batches 0, 1, … below `batches` that are this rank's, in order: those with
// b % ranks.size() == ranks.rank(). `progress` counts batches. Every rank calls it, and none is ahead of
// another by more than a batch. False, on all of them, once `stop` said so on any: some batches are not
// computed then.
bool compute_batches(size_t batches, Collectives& ranks, const BatchHooks& hooks,
                     const std::function<void(size_t batch)>& compute);

}  // namespace dtopp
