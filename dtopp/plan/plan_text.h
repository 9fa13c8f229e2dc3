// A plan as `dtopp plan` prints it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dtopp/plan/plan.h"

namespace dtopp {

// A device the plan may or may not fit on.
struct PlanDevice {
  std::string name;
  uint64_t memory_bytes;
};

// A row each for parameters, arithmetic and memory by part; with a device, whether it fits.
std::string plan_table(const Plan& plan, const RunConfig& config, const std::optional<PlanDevice>& device);

// The same figures as one JSON object on one line.
std::string plan_json(const Plan& plan, const std::optional<PlanDevice>& device);

}  // namespace dtopp
