#include "cli/run_cost.h"

#include "dtopp/config/config.h"
#include "dtopp/plan/plan.h"

namespace dtopp::cli {
namespace {

double flops_with(config::RunConfig config, int64_t experts) {
  config.routing.experts = {static_cast<double>(experts)};
  return static_cast<double>(plan::make_plan(config).flops_per_token);
}

}  // namespace

// FLOPs are linear in the number of active experts, so two points determine them.
study::TokenCost token_cost_of(const config::RunConfig& config) {
  const plan::Plan plan = plan::make_plan(config);
  if (config.model.is_dense()) return {.fixed = static_cast<double>(plan.flops_per_token)};
  const double one = flops_with(config, 1), more = flops_with(config, 2) - one;
  return {.fixed = one - more, .per_expert = more, .planned_experts = plan.active_experts};
}

std::optional<report::PlannedCost> find_run_cost(const config::RunConfig& config) {
  try {
    const config::Device device =
        config.training.device == config::Device::kCuda ? config::Device::kCuda : config::Device::kCpu;
    return report::PlannedCost{token_cost_of(config),
                               static_cast<double>(plan::make_plan(config, {}, device).memory_bytes())};
  } catch (const config::InvalidValue&) {
    return std::nullopt;  // the configuration does not determine the layout of the ranks
  }
}

}  // namespace dtopp::cli
