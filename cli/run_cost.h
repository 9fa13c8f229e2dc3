// What `plan` says of a run, for who reports on it.
#pragma once

#include <optional>

#include "dtopp/report/sections/input.h"

namespace dtopp::cli {

TokenCost token_cost_of(const RunConfig& config);

// None where the plan cannot be made of the configuration alone.
std::optional<PlannedCost> find_run_cost(const RunConfig& config);

}  // namespace dtopp::cli
