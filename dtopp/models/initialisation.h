// Initial parameter values.
#pragma once

#include "dtopp/models/parameters.h"
#include "dtopp/ops/torch.h"

namespace dtopp {

// Fills the f32 tensor of spec's shape from its distribution. Element i is a function of (seed, name, i)
// alone.
void initialise(const ParameterSpec& spec, uint64_t seed, at::Tensor& tensor);

}  // namespace dtopp
