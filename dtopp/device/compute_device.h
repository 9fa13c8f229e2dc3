// Resolves a configuration's device and precision on this machine.
#pragma once

#include <string>

#include "dtopp/config/run_config.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp::device {

// Selects the device for auto, cpu or cuda, and makes it the calling thread's current device. Call it before
// any other use of torch.
//
// auto selects a CUDA device if one is usable, else the CPU. `local_rank` is the process's index among the
// ranks of this host and selects the device of that index. If the process sees only one device (its own
// CUDA_VISIBLE_DEVICES), it takes that one.
//
// Throws:        UsageError that begins with `option`, the user's name of the setting, if cuda is required
//                but unusable, or if the host has fewer devices than ranks
at::Device compute_device(config::Device wish, const std::string& option, int64_t local_rank = 0);

// For a process that starts ranks but computes nothing: throws UsageError as above if cuda is required but
// unusable.
void require_device(config::Device wish, const std::string& option);

// auto: bf16 if the device has bf16 matrix instructions.
at::ScalarType compute_type(config::Precision precision, const at::Device& device);

}  // namespace dtopp::device
