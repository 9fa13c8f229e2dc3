// Orders training samples by the weights of their sources, for every model type.
#pragma once

#include <memory>
#include <vector>

#include "dtopp/config/run_config.h"
#include "dtopp/data/tokens/mixture.h"
#include "dtopp/models/batch.h"

namespace dtopp {

// Returns the order over the sources of config.data, which have `sizes` samples. Sets data.sources to report
// it.
std::shared_ptr<const MixedOrder> mixed_order_of(const RunConfig& config, std::vector<uint64_t> sizes,
                                                 TrainingData& data);

}  // namespace dtopp
