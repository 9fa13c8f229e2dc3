// What a run will cost.
#include "dtopp/plan/plan.h"

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/verbs.h"
#include "dtopp/plan/plan_text.h"

namespace dtopp::cli {
namespace {

struct PlanOptions {
  std::string config;
  std::vector<std::string> overrides;
  RankLayout layout;
  std::string expert_parallel;  // "": the configuration's
  std::string device;
  bool json = false;
};

// The device that is named, with the memory that one rank has; for `auto` this machine where none is.
std::optional<PlanDevice> device_beside(const PlanOptions& options, bool is_needed) {
  if (options.device.empty() && !is_needed) return std::nullopt;
  PlanDevice device = find_device(options.device.empty() ? "cpu" : options.device);
  if (device.name == "cpu") device.memory_bytes /= static_cast<uint64_t>(options.layout.node_ranks());
  return device;
}

void plan_run(PlanOptions options) {
  if (!options.expert_parallel.empty())
    options.overrides.push_back("parallel.expert_parallel=" + options.expert_parallel);
  const RunConfig config = load_model_run_config(options.config, options.overrides);
  RankLayout& layout = options.layout;
  check_layout(layout, config.model);
  const std::optional<int64_t> degree = config.parallel.expert_parallel.ranks;
  PlanContext context{device_beside(options, !degree)};
  Device device = config.training.device;
  if (context.device) device = context.device->name == "cpu" ? Device::kCpu : Device::kCuda;
  context.alternatives = plans_by_expert_parallel(config, layout, device);
  layout.expert_parallel =
      degree ? *degree : recommend(context.alternatives, *context.device).expert_parallel;
  const Plan plan = make_plan(config, layout, device);
  if (context.device)
    context.largest_micro_batch = largest_micro_batch(config, layout, device, context.device->memory_bytes);
  std::printf("%s",
              (options.json ? plan_json(plan, context) + "\n" : plan_table(plan, config, context)).c_str());
}

}  // namespace

void add_plan(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* verb = app.add_subcommand(
      "plan", "Foretell parameters, FLOPs, memory and what ranks send each other; trains nothing");
  verb->add_option("config", options->config, "the run's YAML file")->required();
  verb->add_option("overrides", options->overrides, "key.path=value, e.g. model.num_layers=8");
  verb->add_option("--ranks", options->layout.ranks, "processes that train together")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb->add_option("--nodes", options->layout.nodes, "machines that the ranks lie on, as many on each")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb->add_option("--expert-parallel", options->expert_parallel,
                   "ranks of a node that share the experts of each layer, or auto: the fewest with which a "
                   "rank fits the device; parallel.expert_parallel says so too");
  verb->add_option("--device", options->device,
                   "does it fit, with which micro-batch at most, and how long does a step take: cpu (this "
                   "machine; no time), a100, h100, h200; without it, training.device says what memory is "
                   "counted for");
  verb->add_flag("--json", options->json, "print one JSON object");
  verb->callback([options] { plan_run(*options); });
}

}  // namespace dtopp::cli
