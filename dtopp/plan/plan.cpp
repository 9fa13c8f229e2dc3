#include "dtopp/plan/plan.h"

#include <algorithm>
#include <bit>

#include "dtopp/config/config.h"
#include "dtopp/distributed/shard_layout.h"
#include "dtopp/models/make_model.h"
#include "dtopp/models/model.h"
#include "dtopp/optim/optimizer.h"
#include "dtopp/plan/expert_parallel.h"

namespace dtopp::plan {
namespace {

constexpr uint64_t kFloat = 4;  // bytes
constexpr uint64_t kBfloat16 = 2;
constexpr uint64_t kProgram = uint64_t{160} << 20;  // the program and libtorch, measured
// A CUDA context with its loaded kernels, and the workspaces of cuBLAS and cuBLASLt.
constexpr uint64_t kCudaProgram = uint64_t{512 + 2 * 32} << 20;
// The share of the activations' memory that gradients and workspace reuse when the backward pass releases it.
// The rest is in blocks too small for them (benchmarks/training_cost.py).
constexpr double kReusedShare = 0.6;

double possible_experts(const config::RunConfig& config, double experts) {
  if (config.model.is_dense()) return 0;
  return std::clamp(experts, config.model.zero_experts > 0 ? 0.0 : 1.0,
                    static_cast<double>(config.model.num_experts));
}

double mean_active_experts(const config::RunConfig& config) {
  return possible_experts(config, config::mean_experts_of_run(config.routing));
}

// The mean number of experts per token of the step that needs most memory. The logits of a new model are
// symmetric, so with relu about half of all experts are active at first; a layer may have all.
double most_active_experts(const config::RunConfig& config) {
  if (!config.model.is_dense() && config.routing.method == config::RoutingMethod::kRelu)
    return static_cast<double>(config.model.num_experts);
  return possible_experts(config, config::most_experts_of_run(config.routing));
}

struct Counts {
  uint64_t all = 0;
  uint64_t held = 0;     // by a rank for computing: all but the experts of the other ranks of its EP group
  uint64_t fp32 = 0;     // part of `held` that is fp32 in every precision
  uint64_t experts = 0;  // part of `all`
  uint64_t slots = 0;    // elements of the optimizer's slots
  uint64_t largest = 0;  // largest parameter
  uint64_t largest_held = 0;
  // Multiplied by every token: matrices except experts, and a tied embedding's output projection.
  uint64_t multiplied = 0;
  uint64_t conditioning = 0;  // multiplied once per sample
};

Counts count_parameters(const models::Model& model, const config::OptimizerConfig& config,
                        int64_t expert_parallel) {
  const std::unique_ptr<optim::Optimizer> optimizer = optim::make_optimizer(config);
  Counts counts;
  for (const parameters::ParameterSpec& spec : model.parameters) {
    const auto count = static_cast<uint64_t>(spec.count());
    const uint64_t held = spec.role == parameters::ParameterRole::kExpert
                              ? count / static_cast<uint64_t>(expert_parallel)
                              : count;
    counts.all = models::checked_sum({counts.all, count});
    counts.slots =
        models::checked_sum({counts.slots, models::checked_product({count, optimizer->slots(spec).size()})});
    counts.held += held;
    counts.largest = std::max(counts.largest, count);
    counts.largest_held = std::max(counts.largest_held, held);
    if (!spec.compute_precision()) counts.fp32 += held;
    switch (spec.role) {
      case parameters::ParameterRole::kExpert:
        counts.experts += count;
        break;
      case parameters::ParameterRole::kMatrix:
      case parameters::ParameterRole::kRouter:
      case parameters::ParameterRole::kTiedLookUp:
        counts.multiplied += count;
        break;
      case parameters::ParameterRole::kConditioning:
        counts.conditioning += count;
        break;
      case parameters::ParameterRole::kLookUp:
      case parameters::ParameterRole::kGain:
      case parameters::ParameterRole::kRouterScale:
        break;
    }
  }
  return counts;
}

// The inputs of the memory count.
struct Subject {
  const config::RunConfig& config;
  const models::Model& model;
  Counts counts;
  double most_active_experts;
  distributed::ParallelDims dims;
  config::Device device;
  Communication communication{};
};

// The number of gradient sums that a rank holds. With parallel.reproducible, it holds one per level of the
// tree over its micro-steps (distributed/tree_sum.h).
uint64_t gradient_sums(const Subject& subject) {
  const auto micro_steps = static_cast<uint64_t>(subject.communication.micro_steps);
  return subject.config.parallel.reproducible ? std::max<uint64_t>(1, std::bit_width(micro_steps - 1)) : 1;
}

// Elements per gradient sum. With parallel.reproducible, the EP group reduces dense gradients as they arise,
// so a rank sums only its part. Otherwise the group reduces them at the end of the step.
uint64_t summed_elements(const Subject& subject) {
  const auto degree = static_cast<uint64_t>(subject.dims.ep_size);
  return subject.config.parallel.reproducible ? (subject.counts.all + degree - 1) / degree
                                              : subject.counts.held;
}

// Rows of other ranks with their gates, kept for the backward pass; the rows of one layer in transit, sent
// and received; a bucket of gradients, sent and received.
uint64_t exchange_buffers(const Subject& subject, uint64_t width) {
  uint64_t bytes = 0;
  if (subject.dims.world_size > 1) {
    const uint64_t held = subject.counts.held;
    const auto bucket = static_cast<uint64_t>(distributed::bucket_elements(static_cast<int64_t>(held)));
    bytes =
        models::checked_product({2, kFloat, std::min(held, std::max(subject.counts.largest_held, bucket))});
  }
  if (subject.dims.ep_size == 1) return bytes;
  const config::ModelConfig& model = subject.config.model;
  const double rows = expected_ranks(model.num_experts, subject.dims.ep_size, subject.most_active_experts) *
                      static_cast<double>(subject.config.training.micro_batch_size) *
                      static_cast<double>(subject.model.tokens_per_sample);
  const auto row =
      static_cast<double>(models::checked_product({static_cast<uint64_t>(model.hidden_size), width}));
  const auto gates = static_cast<double>(kFloat) * static_cast<double>(model.num_experts) /
                     static_cast<double>(subject.dims.ep_size);
  const auto layers = static_cast<double>(subject.model.num_routed_layers);
  return models::checked_sum({bytes, models::checked_round(rows * (layers * (row + gates) + 2 * row))});
}

uint64_t bytes_of(const std::vector<models::MemoryPart>& parts, std::string_view name) {
  const auto part = std::ranges::find(parts, name, &models::MemoryPart::name);
  return part == parts.end() ? 0 : part->bytes;
}

// Validation tasks and samples need the whole model in fp32 on every rank. It takes the memory of gradients
// and activations.
void add_task_model(const Subject& subject, std::vector<models::MemoryPart>& parts) {
  const config::ValidationConfig& validation = subject.config.validation;
  if (subject.dims.world_size == 1 || validation.every == 0) return;
  if (validation.tasks.empty() && validation.samples == 0) return;
  const uint64_t model = models::checked_product({subject.counts.all, kFloat});
  const uint64_t free_then =
      models::checked_sum({bytes_of(parts, "gradients"), bytes_of(parts, "micro_batch_gradients"),
                           bytes_of(parts, "activations")});
  if (model > free_then) parts.push_back({"task_model", model - free_then});
}

std::vector<models::MemoryPart> plan_memory(const Subject& subject, config::Precision precision) {
  const Counts& counts = subject.counts;
  const config::TrainingConfig& training = subject.config.training;
  const bool bf16 = precision == config::Precision::kBf16;
  const bool cuda = subject.device == config::Device::kCuda;
  const models::StepCosts costs =
      models::model_costs(subject.config.model, {training.micro_batch_size, subject.most_active_experts,
                                                 bf16 ? kBfloat16 : kFloat, cuda, training.recompute});
  const auto n = static_cast<uint64_t>(subject.dims.world_size);
  const uint64_t masters = (models::checked_product({counts.all, kFloat}) + n - 1) / n;
  // In fp32, a rank computes with its own main parameters, and needs copies only of those that other ranks
  // keep.
  const uint64_t in_fp32 = bf16 ? counts.fp32 : counts.held;
  const uint64_t kept_in_fp32 = bf16 ? counts.fp32 / n : counts.all / n;
  const uint64_t copies = models::checked_sum({models::checked_product({counts.held - in_fp32, kBfloat16}),
                                               models::checked_product({in_fp32 - kept_in_fp32, kFloat})});
  const bool several = subject.communication.micro_steps > 1;
  // One parameter's gradient at a time, before it is added. With parallel.reproducible, a rank forms its
  // experts' gradients separately for the rows of each rank of the EP group, to follow the tree over
  // micro-batches.
  const bool by_rank = subject.config.parallel.reproducible;
  const uint64_t micro_gradients =
      bf16 || several ? models::checked_product(
                            {by_rank ? counts.largest : counts.largest_held, bf16 ? kBfloat16 : kFloat})
                      : 0;
  const uint64_t arising =
      several ? micro_gradients : models::checked_product({summed_elements(subject), kFloat});
  // On a CUDA device the allocator splits blocks for later tensors. The first layer's activations are
  // released only after all gradients exist.
  const uint64_t workspace = models::checked_sum({costs.workspace, costs.recomputed});
  const uint64_t later = cuda ? arising : models::checked_sum({arising, workspace});
  const uint64_t reused =
      std::min(later, cuda ? costs.activations - costs.first_layer
                           : models::checked_round(kReusedShare * static_cast<double>(costs.activations)));
  // With recomputation few activations are stored. The workspace then takes the memory that the loss has
  // released, too (measured).
  const bool takes_loss = !cuda && training.recompute != config::Recompute::kNone;
  const uint64_t released = takes_loss ? std::min({costs.released, later - reused, workspace}) : 0;
  std::vector<models::MemoryPart> parts = {
      {"parameters", masters},
      {"optimizer_moments", (models::checked_product({counts.slots, kFloat}) + n - 1) / n},
      {"average", subject.model.ema_decay > 0 ? masters : 0},
      {"gradients", models::checked_product({gradient_sums(subject), summed_elements(subject), kFloat})},
      {"compute_copies", copies},
      {"micro_batch_gradients", micro_gradients},
      {"activations", costs.activations - reused},
      {"exchange_buffers", exchange_buffers(subject, bf16 ? kBfloat16 : kFloat)},
      costs.loss,
      {"workspace", workspace - released},
      {"program", cuda ? kCudaProgram : kProgram}};
  add_task_model(subject, parts);
  return parts;
}

}  // namespace

uint64_t Plan::memory_bytes() const {
  uint64_t total = 0;
  for (const models::MemoryPart& part : memory) total = models::checked_sum({total, part.bytes});
  return total;
}

uint64_t Plan::memory_bytes(std::string_view part) const { return bytes_of(memory, part); }

Plan make_plan(const config::RunConfig& config, const distributed::ParallelDims& dims,
               config::Device device) {
  check_dims(dims, config.model);
  const config::TrainingConfig& training = config.training;
  if (training.global_batch_size / training.micro_batch_size < dims.world_size)
    throw config::InvalidValue(
        "training.global_batch_size",
        std::to_string(training.global_batch_size) + " in micro-batches of " +
            std::to_string(training.micro_batch_size) + " leaves some of " + std::to_string(dims.world_size) +
            " ranks without any; lower training.micro_batch_size or the number of ranks");
  const models::Model model = models::make_model(config);
  Subject subject{
      config, model, count_parameters(model, config.optimizer, dims.ep_size), most_active_experts(config),
      dims,   device};
  const Counts& counts = subject.counts;
  Plan plan;
  plan.active_experts = mean_active_experts(config);
  plan.parameters = counts.all;
  const double share =
      config.model.is_dense() ? 1.0 : plan.active_experts / static_cast<double>(config.model.num_experts);
  const uint64_t active_experts = models::checked_round(static_cast<double>(counts.experts) * share);
  plan.active_parameters = counts.all - counts.experts + active_experts;
  const uint64_t conditioning = counts.conditioning / static_cast<uint64_t>(model.tokens_per_sample);
  const models::StepCosts costs = models::model_costs(
      config.model, {training.micro_batch_size, plan.active_experts, kFloat, false, training.recompute});
  plan.flops_per_token = models::checked_sum(
      {models::checked_product({6, models::checked_sum({counts.multiplied, active_experts, conditioning})}),
       costs.attention_flops});
  const auto num_experts = static_cast<uint64_t>(config.model.num_experts);
  plan.flops_per_expert = config.model.is_dense() ? 0 : 6 * (counts.experts / num_experts);
  plan.fixed_flops_per_token = plan.flops_per_token - 6 * active_experts;
  if (config.model.is_dense()) plan.fixed_flops_per_token = plan.flops_per_token;
  plan.recomputed_flops_per_token = costs.recomputed_flops;

  plan.tokens_per_step = models::checked_product(
      {static_cast<uint64_t>(training.global_batch_size), static_cast<uint64_t>(model.tokens_per_sample)});
  plan.micro_batch_size = training.micro_batch_size;
  plan.dims = dims;
  plan.checkpoint_bytes = models::checked_product(
      {kFloat, models::checked_sum({counts.all, counts.slots, model.ema_decay > 0 ? counts.all : 0})});
  std::vector<config::Precision> precisions = {training.precision};
  if (training.precision == config::Precision::kAuto) {
    precisions = {config::Precision::kBf16};
    if (device != config::Device::kCuda) precisions = {config::Precision::kFp32, config::Precision::kBf16};
  }
  plan.either_precision = precisions.size() > 1;
  for (const config::Precision precision : precisions) {
    Plan other = plan;
    other.precision = precision;
    other.communication = subject.communication = plan_communication(
        config, model, dims, plan.active_experts, precision == config::Precision::kBf16 ? kBfloat16 : kFloat);
    other.gradient_sums = gradient_sums(subject);
    other.memory = plan_memory(subject, precision);
    const config::CheckpointConfig& saving = config.checkpoint;
    if (saving.asynchronous != config::Asynchronous::kFalse && saving.every > 0 &&
        saving.every < training.steps)
      other.snapshot_bytes =
          models::checked_sum({other.memory_bytes("parameters"), other.memory_bytes("optimizer_moments"),
                               other.memory_bytes("average")});
    if (plan.memory.empty() || other.memory_bytes() > plan.memory_bytes()) plan = other;
  }
  return plan;
}

}  // namespace dtopp::plan
