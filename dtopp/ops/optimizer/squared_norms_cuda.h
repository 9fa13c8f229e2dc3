// squared_norms' CUDA kernel, as a plain function of device pointers. squared_norms.h describes it.
#pragma once

#include "dtopp/ops/cuda/cuda_types.h"

namespace dtopp::ops::cuda {

void squared_norms(const float* values, const int64_t* offsets, int64_t parts, double* squares,
                   Stream stream);

}  // namespace dtopp::ops::cuda
