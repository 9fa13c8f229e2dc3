// Initial parameter values.
#pragma once

#include "dtopp/ops/core/torch.h"
#include "dtopp/parameters/parameters.h"

namespace dtopp {

// Fills the f32 tensor of spec's shape from its distribution. Element i is a function of (seed, name, i)
// alone.
void initialise(const ParameterSpec& spec, uint64_t seed, at::Tensor& tensor);

}  // namespace dtopp
