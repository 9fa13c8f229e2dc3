
#include <nlohmann/json.hpp>

#include "dtopp/base/json.h"
#include "dtopp/config/config.h"
#include "dtopp/plan/plan.h"

namespace dtopp::plan {
namespace {

std::string with_unit(double value) {
  constexpr std::array<const char*, 8> kUnits = {"", " K", " M", " G", " T", " P", " E", " Z"};
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return format(unit == 0 ? "%.0f%s" : "%.3f%s", value, kUnits[unit]);
}

std::string bytes(uint64_t count) { return format_bytes(static_cast<double>(count)); }

// "optimizer moments" for optimizer_moments, the name in --json.
std::string words(std::string name) {
  std::ranges::replace(name, '_', ' ');
  return name;
}

std::string row(const std::string& name, const std::string& value, const std::string& note = "") {
  return format("%-24s%14s", name.c_str(), value.c_str()) + (note.empty() ? "" : "   " + note) + "\n";
}

std::string arithmetic_rows(const Plan& plan, const config::RunConfig& config) {
  std::string experts;
  if (!config.model.is_dense())
    experts = format("%g of %ld experts per token", plan.active_experts, config.model.num_experts);
  if (config.model.zero_experts > 0) experts += format(", %ld zero experts", config.model.zero_experts);
  if (config.model.shared_experts > 0) experts += format(" and %ld shared", config.model.shared_experts);
  const double flops_per_token = static_cast<double>(plan.flops_per_token);
  const double tokens =
      static_cast<double>(plan.tokens_per_step) * static_cast<double>(config.training.steps);
  return row("parameters", with_unit(static_cast<double>(plan.parameters))) +
         row("active parameters", with_unit(static_cast<double>(plan.active_parameters)), experts) +
         row("FLOPs per token", with_unit(flops_per_token), "forward and backward") +
         row("tokens per step", with_unit(static_cast<double>(plan.tokens_per_step))) +
         (plan.optimizer_flops == 0 ? ""
                                    : row("FLOPs of an update", with_unit(plan.optimizer_flops),
                                          format("muon; %.3g %% of a step's others",
                                                 100 * plan.optimizer_flops / flops_per_token /
                                                     static_cast<double>(plan.tokens_per_step)))) +
         row("total tokens", with_unit(tokens), std::to_string(config.training.steps) + " steps") +
         row("total FLOPs", with_unit(tokens * flops_per_token));
}

std::string precision_text(const Plan& plan) {
  if (plan.either_precision) return "fp32 or bf16";
  return plan.precision == config::Precision::kBf16 ? "bf16" : "fp32";
}

std::string memory_rows(const Plan& plan) {
  std::string text = std::string("memory") + (plan.dims.world_size > 1 ? " of each rank" : "") + "\n";
  for (const models::MemoryPart& part : plan.memory)
    if (part.bytes > 0) text += row("  " + words(part.name), bytes(part.bytes));
  text += row("  total", bytes(plan.memory_bytes()),
              "micro-batch " + std::to_string(plan.micro_batch_size) + ", " + precision_text(plan));
  if (plan.snapshot_bytes == 0) return text;
  return text + row("  checkpoint snapshot", bytes(plan.snapshot_bytes),
                    "in addition, of the host: checkpoint.asynchronous");
}

// Totals over all collectives, each of which is rounded.
CollectiveBytes sent_bytes(const Plan& plan) {
  CollectiveBytes total{"total"};
  for (const CollectiveBytes& sent : by_collective(plan.communication)) {
    total.inside += sent.inside;
    total.between += sent.between;
  }
  return total;
}

std::string sent_rows(const Plan& plan) {
  const auto columns = [](const std::string& name, const std::string& inside, const std::string& between) {
    return format("%-24s%14s%16s\n", name.c_str(), inside.c_str(), between.c_str());
  };
  std::string text = columns("sent per step, mean rank", "inside nodes", "between nodes");
  const CollectiveBytes total = sent_bytes(plan);
  for (const CollectiveBytes& sent : by_collective(plan.communication))
    if (sent.inside + sent.between > 0)
      text += columns("  " + words(sent.name), bytes(sent.inside), bytes(sent.between));
  text += columns("  total", bytes(total.inside), bytes(total.between));
  if (plan.dims.ep_size > 1)
    text += row("rows per token", format("%.2f", plan.communication.rows_per_token),
                "ranks of " + std::to_string(plan.dims.ep_size) + " that hold its experts");
  return text;
}

std::optional<StepTime> time_of(const Plan& plan, const std::optional<device::PlanDevice>& device) {
  if (!device || !device->rates) return std::nullopt;
  return plan_step_time(plan, *device->rates);
}

std::string time_rows(const Plan& plan, const device::DeviceRates& rates) {
  const StepTime time = plan_step_time(plan, rates);
  const bool bf16 = plan.precision == config::Precision::kBf16;
  const auto seconds = [](double value) { return format("%.3f s", value); };
  const auto rate = [](double share, double peak, const char* unit) {
    return format("%.0f %% of %g ", 100 * share, peak) + unit;
  };
  const double flops = (bf16 ? rates.bf16_flops : rates.fp32_flops) / 1e12;
  const std::string hidden =
      format("not hidden: the last bucket, or beyond %.0f %% of ", 100 * device::AssumedShares::kHiding);
  std::string text = row("step", seconds(time.seconds()), format("MFU %.1f %%", 100 * time.mfu)) +
                     row("  compute", seconds(time.compute),
                         "assumed: " + rate(device::AssumedShares::kCompute, flops, "TFLOP/s"));
  if (plan.dims.world_size > 1) {
    text += row("  gradients", seconds(time.gradients), hidden + "the last backward pass") +
            row("  parameters", seconds(time.parameters), hidden + "the first forward pass") +
            row("  rows", seconds(time.rows),
                "assumed for links: " +
                    rate(device::AssumedShares::kInside, rates.inside / 1e9, "GB/s inside nodes, ") +
                    rate(device::AssumedShares::kBetween, rates.between / 1e9, "GB/s between"));
  }
  return text +
         row("  update", seconds(time.update),
             "assumed for memory: " + rate(device::AssumedShares::kMemory, rates.memory / 1e9, "GB/s"));
}

std::string alternative_rows(const PlanContext& context) {
  std::string text =
      format("%-24s%14s%16s%14s\n", "expert-parallel ranks", "memory", "between nodes", "step");
  for (const Plan& plan : context.alternatives) {
    const std::optional<StepTime> time = time_of(plan, context.device);
    text += format("  %-22ld%14s%16s%14s\n", plan.dims.ep_size, bytes(plan.memory_bytes()).c_str(),
                   bytes(sent_bytes(plan).between).c_str(),
                   time ? format("%.3f s", time->seconds()).c_str() : "?");
  }
  if (!context.device) return text;
  const Recommendation best = recommend(context.alternatives, *context.device);
  return text + "recommended: parallel.expert_parallel=" + std::to_string(best.expert_parallel) + ": " +
         best.reason + "\n";
}

ordered_json wire_json(const Plan& plan) {
  ordered_json json;
  for (const CollectiveBytes& sent : by_collective(plan.communication))
    json[sent.name] = {{"inside", sent.inside}, {"between", sent.between}};
  return json;
}

ordered_json seconds_json(const std::optional<StepTime>& time) {
  return time ? ordered_json(time->seconds()) : ordered_json();
}

ordered_json assumed_json(const Plan& plan, const device::DeviceRates& rates) {
  const bool bf16 = plan.precision == config::Precision::kBf16;
  return {
      {"flops_per_second", device::AssumedShares::kCompute * (bf16 ? rates.bf16_flops : rates.fp32_flops)},
      {"memory_bytes_per_second", device::AssumedShares::kMemory * rates.memory},
      {"inside_bytes_per_second", device::AssumedShares::kInside * rates.inside},
      {"between_bytes_per_second", device::AssumedShares::kBetween * rates.between},
      {"hiding_share_of_a_pass", device::AssumedShares::kHiding}};
}

ordered_json alternatives_json(const PlanContext& context) {
  auto list = ordered_json::array();
  for (const Plan& plan : context.alternatives) {
    ordered_json one;
    one["expert_parallel"] = plan.dims.ep_size;
    one["memory_bytes"] = plan.memory_bytes();
    one["wire_bytes"] = wire_json(plan);
    one["step_seconds"] = seconds_json(time_of(plan, context.device));
    list.push_back(one);
  }
  return list;
}

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

std::string plan_table(const Plan& plan, const config::RunConfig& config, const PlanContext& context) {
  std::string text = config.name.empty() ? "" : config.name + "\n";
  text += arithmetic_rows(plan, config) + memory_rows(plan);
  if (context.device) {
    text += row(context.device->name, bytes(context.device->memory_bytes),
                plan.memory_bytes() <= context.device->memory_bytes ? "fits" : "does not fit");
    text += row("largest micro-batch",
                context.largest_micro_batch ? std::to_string(*context.largest_micro_batch) : "none",
                format("that leaves %.0f %% free", 100 * kSpareMemory));
  }
  if (plan.dims.world_size > 1) text += sent_rows(plan);
  if (context.device && context.device->rates) text += time_rows(plan, *context.device->rates);
  if (context.alternatives.size() > 1) text += alternative_rows(context);
  return text;
}

std::string plan_json(const Plan& plan, const PlanContext& context) {
  ordered_json json;
  json["parameters"] = plan.parameters;
  json["active_parameters"] = plan.active_parameters;
  json["flops_per_token"] = plan.flops_per_token;
  json["tokens_per_step"] = plan.tokens_per_step;
  json["optimizer_flops_per_step"] = plan.optimizer_flops;
  for (const models::MemoryPart& part : plan.memory) json["memory_bytes"][part.name] = part.bytes;
  json["memory_bytes"]["total"] = plan.memory_bytes();
  json["checkpoint_snapshot_bytes"] = plan.snapshot_bytes;
  json["ranks"] = plan.dims.world_size;
  json["nodes"] = plan.dims.nodes;
  json["expert_parallel"] = plan.dims.ep_size;
  json["rows_per_token"] = plan.communication.rows_per_token;
  json["wire_bytes"] = wire_json(plan);
  const CollectiveBytes sent = sent_bytes(plan);
  json["wire_bytes_per_step"] = sent.inside + sent.between;
  const std::optional<StepTime> time = time_of(plan, context.device);
  json["step_seconds"] = seconds_json(time);
  if (time) {
    json["step_seconds_by_part"] = {{"compute", time->compute},
                                    {"gradients", time->gradients},
                                    {"parameters", time->parameters},
                                    {"rows", time->rows},
                                    {"update", time->update}};
    json["mfu"] = time->mfu;
    json["assumed"] = assumed_json(plan, *context.device->rates);
  }
  if (context.device) {
    json["device"] = context.device->name;
    json["device_memory_bytes"] = context.device->memory_bytes;
    json["fits"] = plan.memory_bytes() <= context.device->memory_bytes;
    json["largest_micro_batch"] = nullptr;
    if (context.largest_micro_batch) json["largest_micro_batch"] = *context.largest_micro_batch;
  }
  if (context.alternatives.size() > 1) {
    json["alternatives"] = alternatives_json(context);
    if (context.device) {
      const Recommendation best = recommend(context.alternatives, *context.device);
      json["recommended"] = {{"expert_parallel", best.expert_parallel}, {"reason", best.reason}};
    }
  }
  return dump_json(json);
}

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
  throw ResourceError("this run needs about ", bytes(needed), " of memory and ", bytes(available),
                      " are available; ", remedy, " (`dtopp plan` shows the parts)");
}

}  // namespace dtopp::plan
