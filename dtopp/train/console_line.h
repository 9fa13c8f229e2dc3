// Formats the console lines of a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "dtopp/train/run.h"

namespace dtopp::train {

// The run's device and its speed.
std::string device_line(const std::string& device, const StepYardstick& yardstick);

// step 120/300 | loss 5.123 | grad 0.84 | lr 2.9e-3 | experts 4.02/4 | p 0.412 | imbalance 1.8 | …
//
// Fields that do not apply are omitted: experts and imbalance for a dense model, the target unless dtop_p, p
// for top_k. With a threshold per layer, p is the range "0.39-0.44". A skipped step is marked "skipped".
std::string console_line(const config::RunConfig& config, int64_t step, const StepResult& result,
                         const StepRates& rates);

// validation at step 300: loss 5.123456, active experts 4.020000, hellaswag/accuracy 0.312500
//
// `loss` is null without validation data. A dense model has no active experts.
std::string validation_line(int64_t step, const models::ValidationResult* loss, const Measurements& measured);

std::string skipped_line(const StepResult& result, const std::string& output);

// `planned` is the largest micro-batch that the plan fits into memory. If it is not smaller than the size
// that ran out of memory, the line names half of that size.
std::string out_of_memory_line(const config::RunConfig& config, std::optional<int64_t> planned);

// The reason for ending a run with non-finite steps, and the location of its last good parameters.
std::string given_up_line(const config::RunConfig& config, const StepResult& result,
                          const std::filesystem::path& checkpoint);

}  // namespace dtopp::train
