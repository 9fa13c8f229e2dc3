// Prints a plan for `dtopp plan`, as a table or as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtopp/plan/expert_parallel.h"

namespace dtopp::plan {

// Information that is printed with a plan.
struct PlanContext {
  std::optional<device::PlanDevice> device{};    // device for which fit and step time are shown
  std::vector<Plan> alternatives{};              // plans for every possible degree of expert parallelism
  std::optional<int64_t> largest_micro_batch{};  // on the device; nullopt: none fits
};

// One row per figure: parameters, arithmetic, memory by part, bytes by collective. With a device it also
// shows whether the plan fits, the largest micro-batch that does, and the time per step. If there are several
// alternatives, it lists them with the recommended one.
std::string plan_table(const Plan& plan, const config::RunConfig& config, const PlanContext& context);

// The same figures as one JSON object on one line.
std::string plan_json(const Plan& plan, const PlanContext& context);

}  // namespace dtopp::plan
