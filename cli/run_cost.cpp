#include "cli/run_cost.h"

#include "dtopp/config/config.h"
#include "dtopp/plan/plan.h"

namespace dtopp::cli {
std::optional<double> find_run_cost(const config::RunConfig& config) {
  try {
    const config::Device device =
        config.training.device == config::Device::kCuda ? config::Device::kCuda : config::Device::kCpu;
    return static_cast<double>(plan::make_plan(config, {}, device).memory_bytes());
  } catch (const config::InvalidValue&) {
    return std::nullopt;  // the configuration does not determine the layout of the ranks
  }
}

}  // namespace dtopp::cli
