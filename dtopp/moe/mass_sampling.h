// Which tokens of a step say how many experts every threshold would choose (ops/route/mass_histogram.h).
#pragma once

#include <cstdint>

#include "dtopp/config/routing_config.h"

namespace dtopp {

struct MassSampling {
  int64_t stride = 0;      // every so many tokens of a sample; 0: none
  bool per_layer = false;  // a histogram a layer, else one of all
};

// Where a controller holds a target, none elsewhere. The same tokens whatever the micro-batches and ranks:
// strides divide a sample. The more experts, the fewer tokens, so that comparing their experts stays below a
// hundredth of a step; down to an eighth, as long as a step has enough of them.
MassSampling mass_sampling(const RoutingConfig& config, int64_t num_experts, int64_t tokens_per_sample,
                           int64_t tokens_per_step);

}  // namespace dtopp
