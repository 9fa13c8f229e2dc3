// The console's lines of a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "dtopp/train/run.h"

namespace dtopp {

// Where a run computes, and how fast that is.
std::string device_line(const std::string& device, const StepYardstick& yardstick);

// step 120/300 | loss 5.123 | grad 0.84 | lr 2.9e-3 | experts 4.02/4 | p 0.412 | imbalance 1.8 | 5.12k tok/s
// …
//
// What a model or its routing lacks is left out: experts and imbalance of a dense one, the target unless
// dtop_p, p of top_k. With a threshold per layer, p is their range "0.39-0.44". A skipped step says so.
std::string console_line(const RunConfig& config, int64_t step, const StepResult& result,
                         const StepRates& rates);

// validation at step 300: loss 5.123456, active experts 4.020000, hellaswag 31.250000 %
// `loss` is null where there is no validation data; a dense model has no active experts.
std::string validation_line(int64_t step, const ValidationResult* loss, const ProbeResults& accuracies);

std::string skipped_line(const StepResult& result);

// A rank cut its micro-batches into `before` parts until this step, since then into more.
std::string out_of_memory_line(const RunConfig& config, const StepResult& result, size_t rank,
                               int64_t before);

// Why a run ends whose steps are not finite, and what is left of it.
std::string given_up_line(const RunConfig& config, const StepResult& result,
                          const std::filesystem::path& checkpoint);

}  // namespace dtopp
