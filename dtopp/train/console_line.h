// The console's line of a training step.
#pragma once

#include <cstdint>
#include <string>

#include "dtopp/train/run.h"

namespace dtopp {

// step 120/300 | loss 5.123 | grad 0.84 | lr 2.9e-3 | experts 4.02/4 | p 0.412 | imbalance 1.8 | 5.12k tok/s
// | MFU 43 % | 1.2 GB | 2m10s left What a model or its routing lacks (experts and imbalance of a dense one,
// the target unless dtop_p, p of top_k) is left out. With a threshold per layer, p is their range
// "0.39-0.44". A skipped step says so.
std::string console_line(const RunConfig& config, int64_t step, const StepResult& result,
                         const StepRates& rates);

}  // namespace dtopp
