// What the ranks of a run agree on besides the numbers of its steps. Every rank calls these in the same
// order; one by itself agrees with itself.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "dtopp/base/errors.h"
#include "dtopp/distributed/collectives/collectives.h"

namespace dtopp {

// Ranks do not have the same program, configuration or data. All of them throw it, with the same message.
struct RanksDiffer : Error {
  using Error::Error;
};

// A rank whose text is not rank 0's, and the two texts.
struct RankDifference {
  int64_t rank;
  std::string there, first;

  std::string name() const { return "rank " + std::to_string(rank); }
};

// The first such rank; all ranks learn of it. Nothing where all texts are the same.
std::optional<RankDifference> find_difference(const std::string& mine, Collectives& ranks);

// RanksDiffer where a rank's program is not rank 0's; `version` says which one this is.
void check_program(const std::string& version, Collectives& ranks);

// RanksDiffer where some ranks compute on CPUs and others on CUDA devices, or two on one of those;
// `identity`: of this rank's device (device/device.h).
void check_devices(const std::string& identity, Collectives& ranks);

// What gives every rank rank 0's number, as RoutingInputs::agree; none where there is one rank. `ranks` must
// outlive it.
std::function<double(double here)> agreement(Collectives& ranks);

// Whether it is so on any of them.
bool any_rank(Collectives& ranks, bool here);

}  // namespace dtopp
