// Computes the initial values of parameters.
#pragma once

#include "dtopp/ops/core/torch.h"
#include "dtopp/parameters/parameters.h"

namespace dtopp::parameters {

// Fills an f32 tensor of the spec's shape. Element i depends only on (seed, name, i).
void initialise(const ParameterSpec& spec, uint64_t seed, at::Tensor& tensor);

}  // namespace dtopp::parameters
