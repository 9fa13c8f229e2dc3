// Computes the planned cost of a run, for reports and studies.
#pragma once

#include <optional>

#include "dtopp/report/sections/input.h"

namespace dtopp::cli {

// Returns the FLOPs per token as a linear function of the active experts.
TokenCost token_cost_of(const RunConfig& config);

// Returns nullopt if the plan needs more than the configuration.
std::optional<PlannedCost> find_run_cost(const RunConfig& config);

}  // namespace dtopp::cli
