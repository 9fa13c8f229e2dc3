// Lists the parameters of a language model. Does not depend on torch.
#pragma once

#include <vector>

#include "dtopp/config/model_config.h"
#include "dtopp/config/routing_config.h"
#include "dtopp/parameters/parameters.h"

namespace dtopp::models {

// The parameters in the order of the forward pass.
std::vector<parameters::ParameterSpec> language_model_parameters(const config::ModelConfig& model,
                                                                 const config::RoutingConfig& routing);

}  // namespace dtopp::models
