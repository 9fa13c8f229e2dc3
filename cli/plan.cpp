// Implements `dtopp plan`: estimates the cost of a run.
#include "dtopp/plan/plan.h"

#include <cstdio>

#include "cli/commands.h"
#include "cli/option_checks.h"

namespace dtopp::cli {
namespace {

struct PlanOptions {
  std::string config;
  std::vector<std::string> overrides;
  distributed::ParallelDims dims;
  std::string expert_parallel;  // empty: the value of the configuration
  std::string device;
  bool json = false;
};

// Returns the device of --device with the memory of one rank. Without --device it is this machine if a device
// is needed (parallel.expert_parallel=auto), else nullopt.
std::optional<device::PlanDevice> device_beside(const PlanOptions& options, bool is_needed) {
  if (options.device.empty() && !is_needed) return std::nullopt;
  device::PlanDevice device = device::find_device(options.device.empty() ? "cpu" : options.device);
  if (device.name == "cpu") device.memory_bytes /= static_cast<uint64_t>(options.dims.node_size());
  return device;
}

void plan_run(PlanOptions options) {
  if (!options.expert_parallel.empty())
    options.overrides.push_back("parallel.expert_parallel=" + options.expert_parallel);
  const config::RunConfig config = config::load_model_run_config(options.config, options.overrides);
  distributed::ParallelDims& dims = options.dims;
  plan::check_dims(dims, config.model);
  const std::optional<int64_t> degree = config.parallel.expert_parallel.ranks;
  plan::PlanContext context{device_beside(options, !degree)};
  config::Device device = config.training.device;
  if (context.device) device = context.device->name == "cpu" ? config::Device::kCpu : config::Device::kCuda;
  context.alternatives = plan::plans_by_expert_parallel(config, dims, device);
  dims.ep_size = degree ? *degree : plan::recommend(context.alternatives, *context.device).expert_parallel;
  const plan::Plan plan = plan::make_plan(config, dims, device);
  if (context.device)
    context.largest_micro_batch =
        plan::largest_micro_batch(config, dims, device, context.device->memory_bytes);
  std::printf("%s",
              (options.json ? plan::plan_json(plan, context) + "\n" : plan::plan_table(plan, config, context))
                  .c_str());
}

}  // namespace

void add_plan(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand(
      "plan", "Estimate a run's parameters, FLOPs, memory and communication without training");
  command->add_option("config", options->config, "YAML configuration file of the run")->required();
  command->add_option("overrides", options->overrides,
                      "configuration values as key.path=value, e.g. model.num_layers=8");
  add_number(*command, "--ranks", options->dims.world_size, "number of ranks (processes)",
             positive<int64_t>());
  add_number(*command, "--nodes", options->dims.nodes, "number of machines, with equal numbers of ranks",
             positive<int64_t>());
  command->add_option(
      "--expert-parallel", options->expert_parallel,
      "number of ranks of a node that share the experts of each layer (the EP group); auto: the "
      "smallest number with which a rank fits the device; overrides parallel.expert_parallel");
  command->add_option("--device", options->device,
                      "also estimate whether the run fits this device, its largest micro-batch and its step "
                      "time: cpu (this machine; no time), a100, h100 or h200; without the option, plan "
                      "estimates the memory on training.device only");
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options] { plan_run(*options); });
}

}  // namespace dtopp::cli
