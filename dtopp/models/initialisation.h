// Initial parameter values: a truncated normal cut at three standard deviations for matrices, 1 for gains and
// scales.
#pragma once

#include "dtopp/models/parameters.h"
#include "dtopp/ops/torch.h"

namespace dtopp {

// Fills the f32 tensor of spec's shape. Element i is a function of (seed, name, i) alone.
void initialise(const ParameterSpec& spec, uint64_t seed, at::Tensor& tensor);

}  // namespace dtopp
