// Selects the tokens of a step whose cumulative probabilities are counted
// (ops/route/cumulative_prob_histogram.h).
#pragma once

#include <cstdint>

#include "dtopp/config/routing_config.h"

namespace dtopp {

struct CumulativeProbSampling {
  int64_t stride = 0;      // samples every stride-th token of a sample; 0: none
  bool per_layer = false;  // one histogram per layer, else one for all layers
};

// Returns the sampling of a controller with a target; stride 0 for other methods.
//
// The sampled tokens do not depend on micro-batches or ranks, because strides divide a sample. With more
// experts, fewer tokens are sampled: the comparisons between experts stay below 1 % of a step. The stride is
// at most 8, and a step samples at least 2,048 tokens if it has that many.
CumulativeProbSampling cumulative_prob_sampling(const RoutingConfig& config, int64_t num_experts,
                                                int64_t tokens_per_sample, int64_t tokens_per_step);

}  // namespace dtopp
