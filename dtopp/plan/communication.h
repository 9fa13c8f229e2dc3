// Estimates the bytes that the ranks of a run send in an optimizer step.
//
// n ranks; k of them form an EP group and share the experts of every layer. R = n / k EDP ranks hold the same
// experts, q of them on each node. P_d and P_x: dense and expert parameters. D: hidden size, E: experts, c:
// bytes per element in the compute precision.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtopp/config/run_config.h"
#include "dtopp/distributed/shard_layout.h"
#include "dtopp/models/model.h"

namespace dtopp::plan {

// Bytes that a rank sends: to ranks on its own node, and to ranks on other nodes.
struct SentBytes {
  double inside = 0, between = 0;

  double total() const { return inside + between; }
  SentBytes operator+(const SentBytes& other) const {
    return {inside + other.inside, between + other.between};
  }
};

// Bytes per rank and step, as the mean over ranks.
struct Communication {
  int64_t micro_steps = 1;   // forward and backward passes of the busiest rank
  double busiest_share = 1;  // its micro-batches divided by those of the mean rank
  // Ranks of the EP group that hold experts of a token, on average, itself included.
  // r = k (1 - C(E - E / k, a) / C(E, a)) for a active experts drawn at random.
  double rows_per_token = 0;
  double bucket_share = 0;  // share of gradient and parameter bytes that nothing hides: the last bucket
  // Gradients of dense parameters, to the EP group: (k - 1) / k 4 P_d, in each micro-step with
  // parallel.reproducible, else once.
  SentBytes ep_gradients;
  // Within a node (q - 1) / q 4 (P_d + P_x) / k; then between nodes (1 - q / R) 4 (P_d + P_x) / (k q).
  SentBytes edp_gradients;
  // The same ways with c instead of 4, and (k - 1) / k c P_d in the EP group. In addition, every rank of a
  // group sends as much as the rank with the largest shards of a bucket, which shows in small models.
  SentBytes parameters;
  // Rows to the ranks that hold their experts, and back. Per token and layer:
  // dispatch 2 (k - 1) / k r (D c + 4 E / k), combine 2 (k - 1) / k r D c.
  SentBytes dispatch, combine;
  SentBytes step;  // the values of the step, 2 (n - 1) / n 8 each
};

// `dims` must have passed check_dims. `width` is bytes per element in the compute precision.
Communication plan_communication(const config::RunConfig& config, const models::Model& model,
                                 const distributed::ParallelDims& dims, double active_experts,
                                 uint64_t width);

// The bytes under the names of the collectives (distributed/counting_collectives.h), rounded.
struct CollectiveBytes {
  std::string name;
  uint64_t inside = 0, between = 0;
};
std::vector<CollectiveBytes> by_collective(const Communication& communication);

// The expected number of ranks that hold at least one of `active` experts drawn at random. Each of `ranks`
// ranks holds an equal share of `experts` experts. A fractional `active` is interpolated.
double expected_ranks(int64_t experts, int64_t ranks, double active);

}  // namespace dtopp::plan
