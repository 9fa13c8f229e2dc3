#include "dtopp/plan/plan_text.h"

#include <array>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "dtopp/base/json.h"
#include "dtopp/base/progress.h"

namespace dtopp {
namespace {

template <class... Values>
std::string print(const char* format, Values... values) {
  std::array<char, 200> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

std::string with_unit(double value) {
  constexpr std::array<const char*, 8> kUnits = {"", " K", " M", " G", " T", " P", " E", " Z"};
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return print(unit == 0 ? "%.0f%s" : "%.3f%s", value, kUnits[unit]);
}

std::string row(const std::string& name, const std::string& value, const std::string& note = "") {
  return print("%-24s%14s", name.c_str(), value.c_str()) + (note.empty() ? "" : "   " + note) + "\n";
}

std::string arithmetic_rows(const Plan& plan, const RunConfig& config) {
  std::string experts;
  if (!config.model.is_dense())
    experts = print("%g of %lld experts a token", plan.active_experts,
                    static_cast<long long>(config.model.num_experts));
  const double flops_per_token = static_cast<double>(plan.flops_per_token);
  const double tokens =
      static_cast<double>(plan.tokens_per_step) * static_cast<double>(config.training.steps);
  return row("parameters", with_unit(static_cast<double>(plan.parameters))) +
         row("active parameters", with_unit(static_cast<double>(plan.active_parameters)), experts) +
         row("FLOPs a token", with_unit(flops_per_token), "forward and backward") +
         row("tokens a step", with_unit(static_cast<double>(plan.tokens_per_step))) +
         row("tokens in all", with_unit(tokens), std::to_string(config.training.steps) + " steps") +
         row("FLOPs in all", with_unit(tokens * flops_per_token));
}

std::string memory_rows(const Plan& plan) {
  std::string text = std::string("memory") + (plan.ranks > 1 ? " of each rank" : "") + "\n";
  for (const MemoryPart& part : plan.memory) {
    if (part.bytes > 0) text += row("  " + part.name, format_bytes(static_cast<double>(part.bytes)));
  }
  const std::string precision = plan.precision == Precision::kBf16 ? "bf16" : "fp32";
  return text + row("  total", format_bytes(static_cast<double>(plan.memory_bytes())),
                    "micro-batch " + std::to_string(plan.micro_batch_size) + ", " + precision);
}

}  // namespace

std::string plan_table(const Plan& plan, const RunConfig& config, const std::optional<PlanDevice>& device) {
  std::string text = config.name.empty() ? "" : config.name + "\n";
  text += arithmetic_rows(plan, config) + memory_rows(plan);
  if (plan.ranks > 1)
    text += row("sent a step", format_bytes(static_cast<double>(plan.wire_bytes_per_step)), "by each rank");
  if (device)
    text += row(device->name, format_bytes(static_cast<double>(device->memory_bytes)),
                plan.memory_bytes() <= device->memory_bytes ? "fits" : "does not fit");
  return text;
}

std::string plan_json(const Plan& plan, const std::optional<PlanDevice>& device) {
  nlohmann::ordered_json json;
  json["parameters"] = plan.parameters;
  json["active_parameters"] = plan.active_parameters;
  json["flops_per_token"] = plan.flops_per_token;
  json["tokens_per_step"] = plan.tokens_per_step;
  for (const MemoryPart& part : plan.memory) json["memory_bytes"][part.name] = part.bytes;
  json["memory_bytes"]["total"] = plan.memory_bytes();
  json["ranks"] = plan.ranks;
  json["wire_bytes_per_step"] = plan.wire_bytes_per_step;
  if (device) {
    json["device"] = device->name;
    json["device_memory_bytes"] = device->memory_bytes;
    json["fits"] = plan.memory_bytes() <= device->memory_bytes;
  }
  return dump_json(json);
}

}  // namespace dtopp
