// Computes the planned cost of a run, for reports and studies.
#pragma once

#include <optional>

#include "dtopp/report/input.h"

namespace dtopp::cli {

// Returns nullopt if the plan needs more than the configuration.
std::optional<report::PlannedCost> find_run_cost(const config::RunConfig& config);

}  // namespace dtopp::cli
