// Derives advice from plans: the largest micro-batch that fits, and remedies for a lack of memory.
#include <algorithm>

#include "dtopp/base/format.h"
#include "dtopp/config/config.h"
#include "dtopp/plan/plan.h"

namespace dtopp::plan {
namespace {

// The largest micro-batch size for which the plan's memory would be available; 0: none. Activations and
// workspace are proportional to it.
uint64_t fitting_micro_batch(const Plan& plan, uint64_t available) {
  const uint64_t moving = plan.memory_bytes("activations") + plan.memory_bytes("workspace");
  const uint64_t fixed = plan.memory_bytes() - moving;
  const auto micro = static_cast<uint64_t>(plan.micro_batch_size);
  return available > fixed && moving > 0 ? std::min((available - fixed) / (moving / micro + 1), micro) : 0;
}

std::string lower_micro_batch(const Plan& plan, uint64_t fitting) {
  return "lower training.micro_batch_size from " + std::to_string(plan.micro_batch_size) + " to " +
         std::to_string(fitting) + " or less";
}

// Recomputation comes first: it changes no bit of the result.
std::string remedy_for_activations(const config::RunConfig& config, const Plan& plan, config::Device device,
                                   uint64_t available) {
  const std::string smaller =
      "make the model smaller (model.num_layers, hidden_size, num_experts) or use a machine with more memory";
  const uint64_t fitting = fitting_micro_batch(plan, available);
  const std::string otherwise = fitting > 0 ? lower_micro_batch(plan, fitting) : smaller;
  config::RunConfig other = config;
  for (const config::Recompute recompute : {config::Recompute::kMoe, config::Recompute::kLayer}) {
    if (recompute <= config.training.recompute) continue;
    if (recompute == config::Recompute::kMoe && config.model.is_dense()) continue;
    other.training.recompute = recompute;
    const Plan recomputing = make_plan(other, plan.dims, device);
    const std::string set = "set training.recompute to " + enum_name(recompute);
    if (recomputing.memory_bytes() <= available) return set + ", or " + otherwise;
    const uint64_t then_fitting = fitting_micro_batch(recomputing, available);
    if (recompute == config::Recompute::kLayer && then_fitting > fitting)
      return set + " and " + lower_micro_batch(plan, then_fitting);
  }
  return otherwise;
}

}  // namespace

std::optional<int64_t> largest_micro_batch(config::RunConfig config, const distributed::ParallelDims& dims,
                                           config::Device device, uint64_t memory) {
  const int64_t batch = config.training.global_batch_size;
  const double room = (1 - kSpareMemory) * static_cast<double>(memory);
  for (int64_t size = batch / dims.world_size; size > 0; --size) {
    if (batch % size != 0) continue;
    config.training.micro_batch_size = size;
    try {
      if (static_cast<double>(make_plan(config, dims, device).memory_bytes()) <= room) return size;
    } catch (const config::InvalidValue&) {  // the size is too large for the kernels
    }
  }
  return std::nullopt;
}

void require_memory(const config::RunConfig& config, const Plan& plan, config::Device device,
                    uint64_t available) {
  const uint64_t needed = plan.memory_bytes();
  if (needed <= available) return;
  std::string remedy = plan.gradient_sums > 1 ? "set parallel.reproducible to false, or " : "";
  if (plan.memory_bytes("task_model") > 0)
    remedy = (config.validation.tasks.empty() ? "set validation.samples to 0, or "
                                              : "set validation.tasks to [], or ") +
             remedy;
  remedy += remedy_for_activations(config, plan, device, available);
  throw ResourceError("this run needs about " + format_bytes(static_cast<double>(needed)) +
                      " of memory and " + format_bytes(static_cast<double>(available)) + " are available; " +
                      remedy + " (`dtopp plan` shows the parts)");
}

}  // namespace dtopp::plan
