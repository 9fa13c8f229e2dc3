#include "dtopp/plan/plan.h"

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/verbs.h"
#include "dtopp/base/json.h"
#include "dtopp/base/progress.h"

namespace dtopp::cli {
namespace {

struct PlanOptions {
  std::string config;
  std::vector<std::string> overrides;
  int64_t ranks = 1;
  std::string device;
  bool json = false;
};

std::string with_unit(double value) {
  constexpr const char* kUnits[] = {"", " K", " M", " G", " T", " P", " E", " Z"};
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  char text[40];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f%s" : "%.3f%s", value, kUnits[unit]);
  return text;
}

void print_json(const Plan& plan, const PlanOptions& options) {
  nlohmann::ordered_json json;
  json["parameters"] = plan.parameters;
  json["active_parameters"] = plan.active_parameters;
  json["flops_per_token"] = plan.flops_per_token;
  json["tokens_per_step"] = plan.tokens_per_step;
  for (const MemoryPart& part : plan.memory) json["memory_bytes"][part.name] = part.bytes;
  json["memory_bytes"]["total"] = plan.memory_bytes();
  json["ranks"] = plan.ranks;
  json["wire_bytes_per_step"] = plan.wire_bytes_per_step;
  if (!options.device.empty()) {
    const uint64_t memory = device_memory(options.device);
    json["device"] = options.device;
    json["device_memory_bytes"] = memory;
    json["fits"] = plan.memory_bytes() <= memory;
  }
  std::printf("%s\n", dump_json(json).c_str());
}

void print_table(const Plan& plan, const RunConfig& config, const PlanOptions& options) {
  const auto row = [](const std::string& name, const std::string& value, const std::string& note = "") {
    std::printf("%-24s%14s%s%s\n", name.c_str(), value.c_str(), note.empty() ? "" : "   ", note.c_str());
  };
  if (!config.name.empty()) std::printf("%s\n", config.name.c_str());
  row("parameters", with_unit(static_cast<double>(plan.parameters)));
  char experts[60] = "";
  if (!config.model.is_dense())
    std::snprintf(experts, sizeof experts, "%g of %lld experts a token", plan.active_experts,
                  static_cast<long long>(config.model.num_experts));
  row("active parameters", with_unit(static_cast<double>(plan.active_parameters)), experts);
  row("FLOPs a token", with_unit(static_cast<double>(plan.flops_per_token)), "forward and backward");
  row("tokens a step", with_unit(static_cast<double>(plan.tokens_per_step)));
  const double tokens =
      static_cast<double>(plan.tokens_per_step) * static_cast<double>(config.training.steps);
  row("tokens in all", with_unit(tokens), std::to_string(config.training.steps) + " steps");
  row("FLOPs in all", with_unit(tokens * static_cast<double>(plan.flops_per_token)));
  std::printf("memory%s\n", plan.ranks > 1 ? " of each rank" : "");
  for (const MemoryPart& part : plan.memory) {
    if (part.bytes > 0) row("  " + part.name, format_bytes(static_cast<double>(part.bytes)));
  }
  const std::string precision = plan.precision == Precision::kBf16 ? "bf16" : "fp32";
  row("  total", format_bytes(static_cast<double>(plan.memory_bytes())),
      "micro-batch " + std::to_string(plan.micro_batch_size) + ", " + precision);
  if (plan.ranks > 1)
    row("sent a step", format_bytes(static_cast<double>(plan.wire_bytes_per_step)), "by each rank");
  if (options.device.empty()) return;
  const uint64_t memory = device_memory(options.device);
  row(options.device, format_bytes(static_cast<double>(memory)),
      plan.memory_bytes() <= memory ? "fits" : "does not fit");
}

void plan_run(const PlanOptions& options) {
  const RunConfig config = load_model_run_config(options.config, options.overrides);
  Device device = config.training.device;
  if (!options.device.empty()) {
    device_memory(options.device);  // a wrong name, before any output
    device = options.device == "cpu" ? Device::kCpu : Device::kCuda;
  }
  const Plan plan = make_plan(config, options.ranks, device);
  if (options.json) {
    print_json(plan, options);
  } else {
    print_table(plan, config, options);
  }
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
