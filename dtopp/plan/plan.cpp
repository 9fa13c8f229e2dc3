#include "dtopp/plan/plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "dtopp/base/progress.h"
#include "dtopp/config/config.h"
#include "dtopp/models/model.h"

namespace dtopp {
namespace {

constexpr uint64_t kFloat = 4;  // bytes
constexpr uint64_t kBfloat16 = 2;
constexpr uint64_t kProgram = uint64_t{128} << 20;  // the program and libtorch, measured
// A context with the kernels it has loaded, and the workspaces of cuBLAS and cuBLASLt.
constexpr uint64_t kCudaProgram = uint64_t{512 + 2 * 32} << 20;
// Of the activations: what gradients and workspace take over as the backward pass releases it; the rest lies
// in pieces too small for them (benchmarks/training_cost.py).
constexpr double kReusedShare = 0.6;
constexpr uint64_t kGiB = uint64_t{1} << 30;

double mean_active_experts(const RunConfig& config) {
  if (config.model.is_dense()) return 0;
  const auto experts = static_cast<double>(config.model.num_experts);
  if (config.routing.method == RoutingMethod::kTopK) return static_cast<double>(config.routing.top_k);
  const std::vector<double>& targets = config.routing.target_experts;
  double total = 0;
  for (const double target : targets) total += std::clamp(target, 1.0, experts);
  return targets.empty() ? 1.0 : total / static_cast<double>(targets.size());
}

struct Counts {
  uint64_t all = 0;
  uint64_t compute_precision = 0;  // have a copy in the compute precision
  uint64_t experts = 0;
  uint64_t largest = 0;     // of one parameter
  uint64_t multiplied = 0;  // by every token: matrices but experts, and a tied embedding's output projection
};

Counts count_parameters(const Model& model) {
  Counts counts;
  for (const ParameterSpec& spec : model.parameters) {
    const auto count = static_cast<uint64_t>(spec.count());
    counts.all = checked_sum({counts.all, count});
    counts.largest = std::max(counts.largest, count);
    if (spec.compute_precision()) counts.compute_precision += count;
    switch (spec.role) {
      case ParameterRole::kExpert:
        counts.experts += count;
        break;
      case ParameterRole::kMatrix:
      case ParameterRole::kRouter:
      case ParameterRole::kTiedLookUp:
        counts.multiplied += count;
        break;
      case ParameterRole::kLookUp:
      case ParameterRole::kGain:
      case ParameterRole::kRouterScale:
        break;
    }
  }
  return counts;
}

// What make_plan knows before it counts memory.
struct Subject {
  const RunConfig& config;
  const Model& model;
  Counts counts;
  double active_experts;
  int64_t ranks;
  Device device;
};

// How many sums of gradients a rank holds at once: with parallel.reproducible one for each level of the tree
// over its micro-batches (distributed/tree_sum.h).
uint64_t gradient_sums(const Subject& subject) {
  const TrainingConfig& training = subject.config.training;
  const int64_t micro_batches = training.global_batch_size / training.micro_batch_size;
  const auto mine = static_cast<uint64_t>((micro_batches + subject.ranks - 1) / subject.ranks);
  return subject.config.parallel.reproducible ? std::max<uint64_t>(1, std::bit_width(mine - 1)) : 1;
}

std::vector<MemoryPart> plan_memory(const Subject& subject, Precision precision) {
  const Counts& counts = subject.counts;
  const TrainingConfig& training = subject.config.training;
  const bool bf16 = precision == Precision::kBf16;
  const bool cuda = subject.device == Device::kCuda;
  const StepCosts costs = subject.model.costs(
      {training.micro_batch_size, subject.active_experts, bf16 ? kBfloat16 : kFloat, cuda});
  const auto n = static_cast<uint64_t>(subject.ranks);
  const uint64_t masters = checked_product({counts.all, kFloat});
  const uint64_t copies = bf16 ? checked_product({counts.compute_precision, kBfloat16}) : 0;
  const uint64_t sums = gradient_sums(subject);
  const bool several = training.global_batch_size > training.micro_batch_size * subject.ranks;
  // Of one parameter at a time, before it is added.
  const uint64_t micro_gradients =
      bf16 || several ? checked_product({counts.largest, bf16 ? kBfloat16 : kFloat}) : 0;
  const uint64_t arising = several ? micro_gradients : masters;
  // On a CUDA device blocks are split for what comes next; the first layer's go when every gradient is there.
  const uint64_t reused =
      cuda ? std::min(arising, costs.activations - costs.first_layer)
           : std::min(checked_sum({arising, costs.workspace}),
                      checked_round(kReusedShare * static_cast<double>(costs.activations)));
  return {{"parameters", masters},
          {"optimizer_moments", (checked_product({2, masters}) + n - 1) / n},
          {"gradients", checked_product({sums, masters})},
          {"compute_copies", copies},
          {"micro_batch_gradients", micro_gradients},
          {"activations", costs.activations - reused},
          costs.loss,
          {"workspace", costs.workspace},
          {"program", cuda ? kCudaProgram : kProgram}};
}

}  // namespace

uint64_t Plan::memory_bytes() const {
  uint64_t total = 0;
  for (const MemoryPart& part : memory) total = checked_sum({total, part.bytes});
  return total;
}

uint64_t Plan::memory_bytes(std::string_view part) const {
  for (const MemoryPart& candidate : memory) {
    if (candidate.name == part) return candidate.bytes;
  }
  return 0;
}

Plan make_plan(const RunConfig& config, int64_t ranks, Device device) {
  if (ranks < 1) throw UsageError("--ranks: must be at least 1");
  const TrainingConfig& training = config.training;
  if (training.global_batch_size / training.micro_batch_size < ranks)
    throw InvalidValue("training.global_batch_size",
                       std::to_string(training.global_batch_size) + " in micro-batches of " +
                           std::to_string(training.micro_batch_size) + " leaves some of " +
                           std::to_string(ranks) +
                           " ranks without any: lower training.micro_batch_size or the number of ranks");
  const Model model = make_model(config);
  const Subject subject{config, model, count_parameters(model), mean_active_experts(config), ranks, device};
  const Counts& counts = subject.counts;
  Plan plan;
  plan.active_experts = subject.active_experts;
  plan.parameters = counts.all;
  const double share =
      config.model.is_dense() ? 1.0 : plan.active_experts / static_cast<double>(config.model.num_experts);
  const uint64_t active_experts = checked_round(static_cast<double>(counts.experts) * share);
  plan.active_parameters = counts.all - counts.experts + active_experts;
  plan.flops_per_token =
      checked_sum({checked_product({6, checked_sum({counts.multiplied, active_experts})}),
                   model.costs({training.micro_batch_size, plan.active_experts, kFloat}).attention_flops});

  plan.tokens_per_step = checked_product(
      {static_cast<uint64_t>(training.global_batch_size), static_cast<uint64_t>(model.tokens_per_sample)});
  plan.micro_batch_size = training.micro_batch_size;
  plan.ranks = ranks;
  plan.precision = training.precision;
  if (plan.precision == Precision::kAuto && device == Device::kCuda) plan.precision = Precision::kBf16;
  if (plan.precision != Precision::kAuto) {
    plan.memory = plan_memory(subject, plan.precision);
  } else {
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      Plan other = plan;
      other.precision = precision;
      other.memory = plan_memory(subject, precision);
      if (plan.memory.empty() || other.memory_bytes() > plan.memory_bytes()) plan = other;
    }
  }
  const auto n = static_cast<uint64_t>(ranks);
  plan.wire_bytes_per_step = checked_product({2 * (n - 1), counts.all, kFloat}) / n;
  return plan;
}

uint64_t device_memory(const std::string& name) {
  if (name == "cpu") return available_memory();
  constexpr std::array<std::pair<std::string_view, uint64_t>, 3> kDevices = {
      {{"a100", 79 * kGiB}, {"h100", 79 * kGiB}, {"h200", 139 * kGiB}}};
  for (const auto& [known, bytes] : kDevices) {
    if (name == known) return bytes;
  }
  throw UsageError("--device: expected one of cpu, a100, h100, h200, got " + quote_for_message(name));
}

void require_memory(const Plan& plan, uint64_t available) {
  const uint64_t needed = plan.memory_bytes();
  if (needed <= available) return;
  // Activations and workspace are in proportion to the micro-batch.
  const uint64_t moving = plan.memory_bytes("activations") + plan.memory_bytes("workspace");
  const uint64_t fixed = needed - moving;
  const auto micro = static_cast<uint64_t>(plan.micro_batch_size);
  const uint64_t fitting = available > fixed && moving > 0 ? (available - fixed) / (moving / micro + 1) : 0;
  std::string remedy = plan.memory_bytes("gradients") > plan.memory_bytes("parameters")
                           ? "set parallel.reproducible to false, or "
                           : "";
  remedy += fitting > 0
                ? "lower training.micro_batch_size from " + std::to_string(micro) + " to " +
                      std::to_string(fitting) + " or less"
                : "make the model smaller (model.num_layers, hidden_size, num_experts) or use a machine "
                  "with more memory";
  throw ResourceError("this run needs about " + format_bytes(static_cast<double>(needed)) +
                      " of memory and " + format_bytes(static_cast<double>(available)) +
                      " are available: " + remedy + " (`dtopp plan` shows the parts)");
}

}  // namespace dtopp
