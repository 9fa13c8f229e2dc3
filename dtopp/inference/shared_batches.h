// Distributes the batches of an evaluation over ranks.
//
// The content of a batch does not depend on the number of ranks. The last bits of an item's result depend on
// the other items of its batch, so results are the same for every number of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "dtopp/distributed/collectives/collectives.h"

namespace dtopp {

struct BatchHooks {
  std::function<void(uint64_t done)> progress;  // approximate total of all ranks
  std::function<bool()> stop;                   // called before each batch
};

// Calls compute(b), in order, for each batch b < `batches` with b % ranks.size() == ranks.rank().
//
// `progress` counts batches. No rank is more than one batch ahead of another.
//
// Returns:    true; false on all ranks once `stop` returns true on any rank, and the remaining batches are
//             not computed
// Collective: every rank of `ranks`, in the same order
bool compute_batches(size_t batches, Collectives& ranks, const BatchHooks& hooks,
                     const std::function<void(size_t batch)>& compute);

}  // namespace dtopp
