// What the ranks of a run send each other in an optimiser step. Formulas: docs/plan.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtopp/config/run_config.h"
#include "dtopp/distributed/topology/rank_layout.h"
#include "dtopp/models/model.h"

namespace dtopp {

// Bytes that a rank sends: to ranks of its node, and to those of others.
struct SentBytes {
  double inside = 0, between = 0;

  double total() const { return inside + between; }
  SentBytes operator+(const SentBytes& other) const {
    return {inside + other.inside, between + other.between};
  }
};

// Bytes are those of one rank in one step, the mean over ranks.
struct Communication {
  int64_t micro_steps = 1;    // forward and backward passes of the busiest rank
  double busiest_share = 1;   // its micro-batches over the mean rank's
  double rows_per_token = 0;  // ranks of a block that hold experts of a token, on average, its own included
  double bucket_share = 0;    // of what gradients and parameters send: what nothing hides, the last bucket
  SentBytes block_gradients;  // of dense parameters, to the ranks of the block
  SentBytes replica_gradients;
  SentBytes parameters;
  SentBytes dispatch, combine;  // rows to the ranks that hold their experts, and back
  SentBytes step;               // the numbers of the step
};

// The layout was checked (check_layout). width: bytes of an element in the compute precision.
Communication plan_communication(const RunConfig& config, const Model& model, const RankLayout& layout,
                                 double active_experts, uint64_t width);

// The same by the names that collectives are counted under (distributed/collectives/counting_collectives.h),
// rounded.
struct CollectiveBytes {
  std::string name;
  uint64_t inside = 0, between = 0;
};
std::vector<CollectiveBytes> by_collective(const Communication& communication);

// Of `ranks` that hold as many of `experts` each: how many hold at least one of `active` experts that are
// drawn at random, on average; between whole numbers of them interpolated.
double expected_ranks(int64_t experts, int64_t ranks, double active);

}  // namespace dtopp
