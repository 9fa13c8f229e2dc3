// Training data whose sources have weights, for every model type.
#pragma once

#include <memory>
#include <vector>

#include "dtopp/config/run_config.h"
#include "dtopp/data/tokens/mixture.h"
#include "dtopp/models/batch.h"

namespace dtopp {

// The order of the sources that config.data names, of `sizes` samples; data.sources is set to report it.
std::shared_ptr<const MixedOrder> mixed_order_of(const RunConfig& config, std::vector<uint64_t> sizes,
                                                 TrainingData& data);

}  // namespace dtopp
