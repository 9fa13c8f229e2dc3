#include "cli/ranks.h"

#include <fstream>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "cli/option_checks.h"
#include "dtopp/checkpoint/tensor_files.h"
#include "dtopp/config/config.h"
#include "dtopp/device/available_memory.h"
#include "dtopp/device/device.h"
#include "dtopp/distributed/rendezvous.h"
#include "dtopp/launch/local_ranks.h"
#include "dtopp/models/make_model.h"
#include "dtopp/ops/moe_ffn/cuda/fused/expert_gemm.h"
#include "dtopp/train/start.h"

namespace dtopp::cli {
namespace {

// Returns the command line of this process. Commands receive only their parsed options.
std::vector<std::string> command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

std::vector<std::string> without(const std::string& option, std::vector<std::string> arguments) {
  for (size_t i = 0; i < arguments.size();) {
    const auto at = arguments.begin() + static_cast<std::ptrdiff_t>(i);
    if (arguments[i] == option)
      arguments.erase(at, at + std::min<std::ptrdiff_t>(2, arguments.end() - at));
    else if (arguments[i].starts_with(option + "="))
      arguments.erase(at);
    else
      ++i;
  }
  return arguments;
}

// Returns the launcher's message about the end of its ranks, with the lost rank that they reported, if any.
std::string end_message(const launch::RanksEnd& end, c10d::Store& store) {
  const auto lost = distributed::reported_loss(store);
  if (end.message().empty() || !lost) return end.message();
  // The first rank to end ended only because it lost another one: name the lost rank instead.
  if (end.signal == 0 && end.status == static_cast<int>(ExitStatus::kResource)) return lost->line();
  return end.message() + (lost->rank == end.rank ? ", " + lost->location : "");
}

// Whether a rank has printed why the ranks ended: it ended by itself, and not because it lost another one.
bool is_reported(const launch::RanksEnd& end, c10d::Store& store) {
  constexpr auto kFirst = static_cast<int>(ExitStatus::kUsage),
                 kLast = static_cast<int>(ExitStatus::kNumerical);
  if (end.signal != 0 || end.status < kFirst || end.status > kLast) return false;
  const auto lost = distributed::reported_loss(store);
  return end.status != static_cast<int>(ExitStatus::kResource) || !lost || lost->status != 0;
}

struct Attempt {
  launch::RanksEnd end;
  std::string message;
  bool is_reported = false;
};

// Each attempt has a store of its own, without the keys of the one before.
Attempt run_ranks(int64_t processes, const launch::SignalPipe& signals) {
  const distributed::StoreConnection store =
      distributed::make_store({.host = "127.0.0.1", .is_server = true, .loopback_only = true});
  launch::LocalRanks ranks;
  ranks.count = processes;
  ranks.arguments = without("--restarts", without("--processes", command_line()));
  ranks.store_port = static_cast<uint16_t>(store.port);
  const launch::RanksEnd end = launch::run_local_ranks(ranks, signals);
  return {end, end_message(end, *store.store), is_reported(end, *store.store)};
}

int64_t newest_step(const RankGroup& group) {
  if (group.restarts == 0) return 0;
  const std::vector<int64_t> steps = checkpoint::list_checkpoint_steps(group.checkpoints);
  return steps.empty() ? 0 : steps.front();
}

config::Device kind_of(const at::Device& device) {
  return device.is_cpu() ? config::Device::kCpu : config::Device::kCuda;
}

uint64_t rank_memory(const distributed::Cluster& cluster, const at::Device& device) {
  const auto memory = device::free_device_memory(device);
  return memory ? *memory : device::available_memory() / static_cast<uint64_t>(cluster.local_size());
}

}  // namespace

launch::LaunchEnvironment own_launch_environment() {
  return launch::read_launch_environment(launch::own_environment());
}

int run_processes(const launch::LaunchEnvironment& environment, const RankGroup& group) {
  if (!environment.alone())
    throw UsageError("--processes: this process is one of ", environment.world_size, " ranks (rank ",
                     environment.rank, ") already; omit --processes");
  distributed::configure_transport();
  const launch::SignalPipe signals;  // also between two attempts
  launch::Restarts restarts(group.restarts, newest_step(group));
  while (true) {
    const Attempt attempt = run_ranks(group.processes, signals);
    const launch::Restart restart = restarts.after(attempt.end, newest_step(group));
    const char* const separator = restart.message.empty() ? "" : "; ";
    if (!attempt.message.empty() && (!attempt.is_reported || !restart.message.empty()))
      print_message((restart.again ? "" : "error: ") + attempt.message + separator + restart.message);
    if (!restart.again) return attempt.end.status;
    if (signals.wait_for_stop(restart.pause))
      throw Stopped("stopped before the restart; run the same command again to resume");
  }
}

CLI::Option* add_processes_option(CLI::App& command, int64_t& processes) {
  return add_checked(command, "--processes", processes,
                     "number of ranks to start on this machine, one process per rank "
                     "(docs/how-to/many-processes.md)",
                     between(1, 4096));
}

void check_requested_kernels() {
  try {
    ops::requested_fused_kernels();
  } catch (const c10::Error& error) {
    throw UsageError(error.what_without_backtrace());
  }
}

const distributed::ProcessGroups& connect_ranks(distributed::Cluster& cluster,
                                                const config::RunConfig& config) {
  cluster.join(std::chrono::seconds(config.parallel.timeout));
  check_requested_kernels();
  const at::Device device =
      device::compute_device(config.training.device, "training.device", cluster.local_rank());
  distributed::ParallelDims dims{.world_size = cluster.size(), .nodes = cluster.nodes()};
  dims.ep_size = plan::expert_parallel_of(config, dims, kind_of(device), rank_memory(cluster, device));
  const distributed::ProcessGroups& groups = cluster.connect(device, dims.ep_size);
  train::check_configuration(config, *groups.world);
  train::check_kernels(config, device, *groups.world);
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

std::optional<double> planned_memory(const config::RunConfig& config) {
  try {
    return static_cast<double>(plan::make_plan(config, {}, config.training.device).memory_bytes());
  } catch (const config::InvalidValue&) {
    return std::nullopt;  // the configuration does not determine the layout of the ranks
  }
}

train::Trainer make_trainer(const config::RunConfig& config, models::TrainingData data,
                            const distributed::ProcessGroups& groups) {
  const at::TensorOptions compute =
      at::device(groups.device).dtype(device::compute_type(config.training.precision, groups.device));
  return {config, models::make_model(config), std::move(data), compute, groups};
}

}  // namespace dtopp::cli
