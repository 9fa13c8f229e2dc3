// Makes the model that a configuration describes: one table row per model type.
#pragma once

#include "dtopp/models/model.h"

namespace dtopp {

// Reads and allocates nothing.
// Throws: std::invalid_argument if no model has the configured type.
Model make_model(const RunConfig& config);

}  // namespace dtopp
