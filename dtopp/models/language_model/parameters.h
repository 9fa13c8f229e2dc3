// Lists the parameters of a language model. Does not depend on torch.
#pragma once

#include <vector>

#include "dtopp/config/model_config.h"
#include "dtopp/config/routing_config.h"
#include "dtopp/parameters/parameters.h"

namespace dtopp {

// The parameters in the order of the forward pass.
std::vector<ParameterSpec> language_model_parameters(const ModelConfig& model, const RoutingConfig& routing);

}  // namespace dtopp
