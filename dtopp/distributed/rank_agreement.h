// Checks that the ranks of a run agree on everything but the numbers of its steps.
//
// Collective:    all functions, on every rank, in the same order; trivial for one rank
#pragma once

#include <optional>
#include <string>

#include "dtopp/base/errors.h"
#include "dtopp/distributed/collectives.h"

namespace dtopp::distributed {
// The ranks have different programs, configurations, data or devices. All ranks throw it with the same
// message.
struct RanksDiffer : Error {
  using Error::Error;
};

// A rank whose text differs from rank 0's.
struct RankDifference {
  int64_t rank;
  std::string there, first;  // the texts of `rank` and of rank 0

  std::string name() const { return "rank " + std::to_string(rank); }
};

// Returns the first such rank, on all ranks; nullopt if all texts are equal.
std::optional<RankDifference> find_difference(const std::string& mine, Collectives& ranks);

// Throws RanksDiffer if ranks mix CPUs and CUDA devices, or if two ranks use one CUDA device. `identity`
// identifies this rank's device: device_identity() (device/device.h), "cpu" for every CPU.
void check_devices(const std::string& identity, Collectives& ranks);

// Whether `here` is true on any rank; the same result on all ranks.
bool any_of(Collectives& ranks, bool here);

}  // namespace dtopp::distributed
