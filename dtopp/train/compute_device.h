// What a configuration's device and precision stand for on this machine.
#pragma once

#include <string>

#include "dtopp/config/run_config.h"
#include "dtopp/ops/torch.h"

namespace dtopp {

// auto: a CUDA device where one can be used, else the CPU. UsageError that begins with `option`, the name the
// user knows the wish by, where cuda is wanted and cannot be had. To be called before anything else is done
// with torch.
at::Device compute_device(Device wish, const std::string& option);

// auto: bf16 where the device multiplies it.
at::ScalarType compute_type(Precision precision, const at::Device& device);

}  // namespace dtopp
