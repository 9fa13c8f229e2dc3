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
  int64_t ranks = 1;
  std::string device;
  bool json = false;
};

void plan_run(const PlanOptions& options) {
  const RunConfig config = load_model_run_config(options.config, options.overrides);
  std::optional<PlanDevice> beside;
  Device device = config.training.device;
  if (!options.device.empty()) {
    beside = {options.device, device_memory(options.device)};
    device = options.device == "cpu" ? Device::kCpu : Device::kCuda;
  }
  const Plan plan = make_plan(config, options.ranks, device);
  std::printf("%s",
              (options.json ? plan_json(plan, beside) + "\n" : plan_table(plan, config, beside)).c_str());
}

}  // namespace

void add_plan(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* verb =
      app.add_subcommand("plan", "Foretell parameters, FLOPs and memory of a run; trains nothing");
  verb->add_option("config", options->config, "the run's YAML file")->required();
  verb->add_option("overrides", options->overrides, "key.path=value, e.g. model.num_layers=8");
  verb->add_option("--ranks", options->ranks, "data-parallel processes")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb->add_option("--device", options->device,
                   "does it fit: cpu (this machine), a100, h100, h200; without it, training.device says what "
                   "memory is counted for");
  verb->add_flag("--json", options->json, "print one JSON object");
  verb->callback([options] { plan_run(*options); });
}

}  // namespace dtopp::cli
