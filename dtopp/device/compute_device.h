// What a configuration's device and precision stand for on this machine.
#pragma once

#include <string>

#include "dtopp/config/run_config.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp {

// auto: a CUDA device where one can be used, else the CPU. local_rank: the process's number among the ranks
// on this host, each of which takes the device of that number, or the only one that it sees (as where each
// has its own CUDA_VISIBLE_DEVICES). It is the calling thread's current device from now on. UsageError that
// begins with `option`, the name the user knows the wish by, where cuda is wanted and cannot be had, and
// where there are fewer devices than ranks. To be called before anything else is done with torch.
at::Device compute_device(Device wish, const std::string& option, int64_t local_rank = 0);

// For who starts ranks and computes nothing: UsageError as above where cuda is wanted and cannot be had.
void require_device(Device wish, const std::string& option);

// auto: bf16 where the device multiplies it.
at::ScalarType compute_type(Precision precision, const at::Device& device);

}  // namespace dtopp
