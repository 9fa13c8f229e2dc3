// The parameters of a language model; torch-free.
#pragma once

#include <vector>

#include "dtopp/config/model_config.h"
#include "dtopp/config/routing_config.h"
#include "dtopp/parameters/parameters.h"

namespace dtopp {

// In the order of a forward pass.
std::vector<ParameterSpec> language_model_parameters(const ModelConfig& model, const RoutingConfig& routing);

}  // namespace dtopp
