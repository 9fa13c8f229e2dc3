// Formats the console lines of a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "dtopp/train/run.h"

namespace dtopp::train {

// 1.51M parameters, 0.91M active per token; 300 steps of 4 x 256 tokens: 307k tokens
//
// `steps` are those that this process trains; a profile trains only a few of the run's.
std::string run_line(const config::RunConfig& config, const plan::Plan& plan, int64_t steps);

// The run's device with its speed, the precision and the output.
std::string device_line(const std::string& device, const std::string& precision,
                        const StepYardstick& yardstick, const std::string& output);

// step 120/300 | loss 5.123 | 5.12k tok/s | 1m27s, 2m10s left | experts 4.02/4 | p 0.412 | imbalance 1.8 |
// grad 0.84 | lr 2.9e-3 | 1.2 GB
//
// A narrow terminal cuts the end of the line. Fields that do not apply are omitted: experts and imbalance for
// a dense model, the target unless dtop_p, p for top_k, the MFU unless the device's data sheet is known. With
// a threshold per layer, p is the range "0.39-0.44". A skipped step is marked "skipped". The times are those
// in steps: so far in the whole run, and left unless it is 0.0s.
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

// The reason for ending a run with non-finite steps, and the location of the parameters before them.
std::string given_up_line(const config::RunConfig& config, const StepResult& result,
                          const std::filesystem::path& checkpoint);

}  // namespace dtopp::train
