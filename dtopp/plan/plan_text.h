// A plan as `dtopp plan` prints it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtopp/plan/expert_parallel.h"

namespace dtopp {

// What a plan is shown with.
struct PlanContext {
  std::optional<PlanDevice> device{};            // it may fit on or not, and takes its time
  std::vector<Plan> alternatives{};              // with every possible degree of expert parallelism
  std::optional<int64_t> largest_micro_batch{};  // on the device; none: none fits
};

// A row each for parameters, arithmetic, memory by part, bytes by collective; with a device, whether it fits,
// the largest micro-batch that does, and how long a step takes; alternatives, where there are several, and
// the one that is recommended.
std::string plan_table(const Plan& plan, const RunConfig& config, const PlanContext& context);

// The same figures as one JSON object on one line.
std::string plan_json(const Plan& plan, const PlanContext& context);

}  // namespace dtopp
