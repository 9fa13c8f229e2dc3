#include "cli/run_cost.h"

#include "dtopp/config/config.h"
#include "dtopp/plan/plan.h"

namespace dtopp::cli {
namespace {

double flops_with(RunConfig config, int64_t experts) {
  config.routing.method = RoutingMethod::kTopK;
  config.routing.top_k = experts;
  return static_cast<double>(make_plan(config).flops_per_token);
}

}  // namespace

std::optional<PlannedCost> find_run_cost(const RunConfig& config) {
  try {
    const Device device = config.training.device == Device::kCuda ? Device::kCuda : Device::kCpu;
    PlannedCost cost;
    cost.memory_bytes = static_cast<double>(make_plan(config, {}, device).memory_bytes());
    if (config.model.is_dense()) {
      cost.flops_per_token = static_cast<double>(make_plan(config).flops_per_token);
      return cost;
    }
    // Linear in the number of active experts.
    const double one = flops_with(config, 1);
    cost.flops_per_token_and_expert = flops_with(config, 2) - one;
    cost.flops_per_token = one - cost.flops_per_token_and_expert;
    return cost;
  } catch (const InvalidValue&) {
    return std::nullopt;  // a layout of many ranks, which the configuration does not tell
  }
}

}  // namespace dtopp::cli
