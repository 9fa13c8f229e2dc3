// Computes the planned memory of a run, for reports and studies.
#pragma once

#include <optional>

#include "dtopp/config/run_config.h"

namespace dtopp::cli {

// See report::FindCost. Returns nullopt if the plan needs more than the configuration.
std::optional<double> find_run_cost(const config::RunConfig& config);

}  // namespace dtopp::cli
