#include "cli/training_ranks.h"

#include <chrono>
#include <utility>

#include "cli/standard_streams.h"
#include "dtopp/device/available_memory.h"
#include "dtopp/device/compute_device.h"
#include "dtopp/device/device.h"
#include "dtopp/models/registry/make_model.h"
#include "dtopp/ops/moe_ffn/cuda/tune/tuner.h"
#include "dtopp/plan/expert_parallel.h"
#include "dtopp/train/rank_checks.h"

namespace dtopp::cli {
namespace {

config::Device kind_of(const at::Device& device) {
  return device.is_cpu() ? config::Device::kCpu : config::Device::kCuda;
}

// The memory that this rank may use.
uint64_t rank_memory(const distributed::Cluster& cluster, const at::Device& device) {
  const auto memory = device::free_device_memory(device);
  return memory ? *memory : device::available_memory() / static_cast<uint64_t>(cluster.local_size());
}

}  // namespace

const distributed::ProcessGroups& connect_ranks(distributed::Cluster& cluster,
                                                const config::RunConfig& config) {
  cluster.join(std::chrono::seconds(config.parallel.timeout));
  const at::Device device =
      device::compute_device(config.training.device, "training.device", cluster.local_rank());
  ops::choose_fused_kernels(config, device, print_message);
  distributed::ParallelDims dims{.world_size = cluster.size(), .nodes = cluster.nodes()};
  dims.ep_size = plan::expert_parallel_of(config, dims, kind_of(device), rank_memory(cluster, device));
  const distributed::ProcessGroups& groups = cluster.connect(device, dims.ep_size);
  train::check_configuration(config, *groups.world);
  train::agree_on_kernels(config, device, *groups.world);
  if (config.training.deterministic) device::make_deterministic(device);
  if (config.training.threads > 0) at::set_num_threads(static_cast<int>(config.training.threads));
  return groups;
}

TrainingMemory require_training_memory(const distributed::Cluster& cluster, const config::RunConfig& config,
                                       const distributed::ProcessGroups& groups) {
  TrainingMemory memory{
      plan::make_plan(config, {groups.size(), 1, groups.dims().ep_size}, kind_of(groups.device)),
      rank_memory(cluster, groups.device)};
  plan::require_memory(config, memory.plan, kind_of(groups.device), memory.available);
  return memory;
}

train::Trainer make_trainer(const config::RunConfig& config, models::TrainingData data,
                            const distributed::ProcessGroups& groups) {
  const at::TensorOptions compute =
      at::device(groups.device).dtype(device::compute_type(config.training.precision, groups.device));
  return {config, models::make_model(config), std::move(data), compute, groups};
}

}  // namespace dtopp::cli
