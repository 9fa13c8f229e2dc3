#include "dtopp/plan/plan.h"

#include "dtopp/config/config.h"
#include "dtopp/distributed/bucketed_reducer.h"
#include "dtopp/models/make_model.h"
#include "dtopp/moe/expert_bias.h"
#include "dtopp/moe/expert_normalization.h"
#include "dtopp/ops/route/cumulative_prob_bins.h"
#include "dtopp/ops/route/route.h"
#include "dtopp/optim/optimizer.h"

namespace dtopp::plan {
namespace {

using models::checked_product, models::checked_round, models::checked_sum;

constexpr double kFloatBytes = 4;
constexpr double kDoubleBytes = 8;
constexpr double kCountBytes = 16;  // two int64

// A group of ranks that communicate; `local` of them are on each of their nodes.
struct Group {
  double size, local;
};

// Bytes sent if each rank sends `part` to every other rank, wherever it is.
SentBytes to_each(const Group& group, double part) {
  return {(group.local - 1) * part, (group.size - group.local) * part};
}

// Bytes sent if each rank sends every other rank its part of `bytes`.
SentBytes exchange(const Group& group, double bytes) { return to_each(group, bytes / group.size); }

// EDP ranks exchange within a node first, then with the ranks at their place on other nodes.
struct EdpGroups {
  Group in_node, across_nodes;
};

EdpGroups edp_groups(const distributed::ParallelDims& dims) {
  const distributed::ParallelDims nested = dims.with_nested_nodes();
  const auto here = static_cast<double>(nested.local_edp_size()), nodes = static_cast<double>(nested.nodes);
  // Several nodes may count as one; their ranks are still on different nodes.
  const double local = here * nodes / static_cast<double>(dims.nodes);
  return {{here, std::min(here, local)}, {nodes, 1}};
}

// How the micro-batches of a step are distributed.
struct Shares {
  double micro_batches;  // of the mean rank
  double micro_steps;    // of the mean EP group
  int64_t most_micro_steps;
};

// Each EP group owns an aligned range of micro-steps (distributed/tree_sum.h).
Shares share_out(const config::TrainingConfig& training, const distributed::ParallelDims& dims) {
  const int64_t leaves = training.global_batch_size / training.micro_batch_size;
  const int64_t micro_steps = (leaves + dims.ep_size - 1) / dims.ep_size;
  int64_t most = 1;
  while (most * dims.edp_size() < micro_steps) most *= 2;
  return {static_cast<double>(leaves) / static_cast<double>(dims.world_size),
          static_cast<double>(micro_steps) / static_cast<double>(dims.edp_size()),
          std::min(most, micro_steps)};
}

// Numbers of parameter elements.
struct ParameterSizes {
  double dense = 0, experts = 0;
};

// The largest bucket's share of the elements that a rank holds (distributed/bucketed_reducer.h).
double bucket_share(const models::Model& model, int64_t expert_parallel) {
  int64_t held = 0, largest = 0;
  for (const parameters::ParameterSpec& spec : model.parameters) {
    const int64_t count =
        spec.count() / (spec.role == parameters::ParameterRole::kExpert ? expert_parallel : 1);
    held += count;
    largest = std::max(largest, count);
  }
  return static_cast<double>(std::min(held, std::max(largest, distributed::bucket_elements(held)))) /
         static_cast<double>(held);
}

ParameterSizes parameter_sizes(const models::Model& model) {
  ParameterSizes sizes;
  for (const parameters::ParameterSpec& spec : model.parameters) {
    const auto count = static_cast<double>(spec.count());
    const bool expert = spec.role == parameters::ParameterRole::kExpert;
    (expert ? sizes.experts : sizes.dense) += count;
  }
  return sizes;
}

// The bytes that a rank sends to each other rank of a group in the all-gathers of all parameters. Parameters
// of one bucket and type share a message (distributed/bucketed_reducer.h). widths[i]: bytes per
// element.
double gathered_bytes(const std::vector<distributed::Shards>& shards, const std::vector<int64_t>& widths) {
  int64_t bytes = 0;
  for (const std::vector<size_t>& bucket : distributed::divide_into_buckets(shards)) {
    std::map<int64_t, std::vector<size_t>> by_width;
    for (const size_t i : bucket) by_width[widths[i]].push_back(i);
    for (const auto& [width, parameters] : by_width)
      bytes += width * distributed::gathered_elements(shards, parameters);
  }
  return static_cast<double>(bytes);
}

// The bytes of the all-gathers of updated parameters, as the mean over the groups of ranks.
SentBytes plan_all_gather(const models::Model& model, const distributed::ParallelDims& dims, int64_t width) {
  const distributed::ParallelDims nested = dims.with_nested_nodes();
  std::vector<distributed::ShardLayout> layouts;
  std::vector<int64_t> widths, dense_widths;
  std::vector<distributed::Shards> in_ep_group;
  for (const parameters::ParameterSpec& spec : model.parameters) {
    widths.push_back(spec.compute_precision() ? width : static_cast<int64_t>(kFloatBytes));
    const auto index = std::ssize(layouts);
    const auto& layout = layouts.emplace_back(spec.count(), spec.num_experts(), index, nested);
    if (spec.role == parameters::ParameterRole::kExpert) continue;
    in_ep_group.push_back(layout.shards_in_ep_group());
    dense_widths.push_back(widths.back());
  }
  const auto bytes_of = [&](int64_t rank, auto shards_of) {
    std::vector<distributed::Shards> shards;
    for (const distributed::ShardLayout& layout : layouts) shards.push_back((layout.*shards_of)(rank));
    return gathered_bytes(shards, widths);
  };
  double in_node = 0, across_nodes = 0;
  const int64_t here = nested.local_edp_size();
  for (int64_t ep_rank = 0; ep_rank < nested.ep_size; ++ep_rank) {
    for (int64_t node = 0; node < nested.nodes; ++node)
      in_node += bytes_of(nested.rank(ep_rank, node * here), &distributed::ShardLayout::shards_in_node);
    for (int64_t place = 0; place < here; ++place)
      across_nodes += bytes_of(nested.rank(ep_rank, place), &distributed::ShardLayout::shards_across_nodes);
  }
  const auto degree = static_cast<double>(nested.ep_size);
  const EdpGroups groups = edp_groups(dims);
  return to_each(groups.in_node, in_node / (degree * groups.across_nodes.size)) +
         to_each(groups.across_nodes, across_nodes / (degree * groups.in_node.size)) +
         to_each({degree, degree}, gathered_bytes(in_ep_group, dense_widths));
}

// The approximate number of values in train/step.h: losses per micro-batch, gradient norms per chunk
// (distributed/shard_layout.h), flags, the largest number of token-expert pairs per rank and
// layer, tokens per expert, sums of logits, and the histograms of cumulative probabilities and of biases.
double count_step_numbers(const config::RunConfig& config, const models::Model& model,
                          const distributed::ParallelDims& dims) {
  constexpr int64_t kLosses = 6, kFlags = 2, kTokenSums = 2;
  const int64_t layers = model.num_routed_layers;
  int64_t chunks = 0;
  for (const parameters::ParameterSpec& spec : model.parameters)
    chunks += distributed::ShardLayout(spec.count(), spec.num_experts(), /*index=*/0, {}).num_chunks();
  int64_t count =
      kLosses * (config.training.global_batch_size / config.training.micro_batch_size) + chunks + kFlags;
  const bool has_bias = config.routing.method == config::RoutingMethod::kDTopPBias ||
                        config.routing.method == config::RoutingMethod::kTopKBias;
  const bool by_quantile = has_bias && config.routing.bias_rule == config::BiasRule::kQuantile;
  if (layers > 0 && config::has_controller(config.routing.method))
    count += (ops::kCumulativeProbBins + (config.model.zero_experts > 0 ? 1 : 0) + (has_bias ? 2 : 0)) *
             (config.routing.scope == config::ThresholdScope::kLayer || by_quantile ? layers : 1);
  if (by_quantile) count += layers * config.model.num_experts * moe::ExpertBias::kBins;
  if (layers > 0 && config.routing.method == config::RoutingMethod::kExpertThreshold)
    count += layers * config.model.num_experts * ops::kLogitBins;
  if (layers > 0)
    count += layers * (dims.world_size + moe::logit_sums_size(config)) + kTokenSums +
             layers * (2 * config.model.num_experts + 1);
  return static_cast<double>(count);
}

// Adds the bytes of rows that are sent to other ranks' experts and back.
void add_rows(const config::RunConfig& config, const models::Model& model, const Group& ep_group,
              const Shares& shares, double width, Communication& communication) {
  const auto layers = static_cast<double>(model.num_routed_layers);
  const double tokens = shares.micro_batches * static_cast<double>(config.training.micro_batch_size) *
                        static_cast<double>(model.tokens_per_sample);
  const double row = static_cast<double>(config.model.hidden_size) * width;
  const double gates = static_cast<double>(config.model.num_experts) / ep_group.size * kFloatBytes;
  const double rows = layers * tokens * communication.rows_per_token;
  // In the forward pass, x and the gates are sent, and a partial sum over experts returns. In the backward
  // pass, their gradients take the opposite ways. First, ranks exchange the numbers of rows and pairs.
  const double counts = layers * shares.micro_steps * ep_group.size * kCountBytes;
  communication.dispatch = exchange(ep_group, 2 * rows * (row + gates) + counts);
  communication.combine = exchange(ep_group, 2 * rows * row);
}

// `dims` must have passed check_dims. `width` is bytes per element in the compute precision.
Communication plan_communication(const config::RunConfig& config, const models::Model& model,
                                 const distributed::ParallelDims& dims, double active_experts,
                                 uint64_t width) {
  const auto element = static_cast<double>(width);
  const auto degree = static_cast<double>(dims.ep_size);
  const Group all = {static_cast<double>(dims.world_size), static_cast<double>(dims.node_size())};
  const Group ep_group = {degree, degree};
  const Shares shares = share_out(config.training, dims);
  const ParameterSizes sizes = parameter_sizes(model);

  Communication result;
  result.micro_steps = shares.most_micro_steps;
  result.busiest_share = static_cast<double>(shares.most_micro_steps) / shares.micro_batches;
  result.bucket_share = bucket_share(model, dims.ep_size);
  // The gradient sums of a rank cover its part of the dense parameters and its experts. Afterwards
  // it sends the same part of the updated parameters to the other ranks.
  const double ep_sums = config.parallel.reproducible ? shares.micro_steps : 1;
  result.ep_gradients = exchange(ep_group, ep_sums * sizes.dense * kFloatBytes);
  const EdpGroups edp = edp_groups(dims);
  const double gradients = (sizes.dense + sizes.experts) / degree * kFloatBytes;
  result.edp_gradients =
      exchange(edp.in_node, gradients) + exchange(edp.across_nodes, gradients / edp.in_node.size);
  result.parameters = plan_all_gather(model, dims, static_cast<int64_t>(width));
  if (!config.model.is_dense()) {
    result.rows_per_token = expected_ranks(config.model.num_experts, dims.ep_size, active_experts);
    add_rows(config, model, ep_group, shares, element, result);
  }
  // An all-reduce sends its bytes twice: as partial sums and as results.
  result.step = exchange(all, 2 * (kDoubleBytes * count_step_numbers(config, model, dims)));
  return result;
}

constexpr uint64_t kFloat = 4;  // bytes
constexpr uint64_t kBfloat16 = 2;
constexpr uint64_t kProgram = uint64_t{160} << 20;  // the program and libtorch, measured
// A CUDA context with its loaded kernels, and the workspaces of cuBLAS and cuBLASLt.
constexpr uint64_t kCudaProgram = uint64_t{512 + 2 * 32} << 20;
// The share of the activations' memory that gradients and workspace reuse when the backward pass releases it.
// The rest is in blocks too small for them (benchmarks/results/README.md).
constexpr double kReusedShare = 0.6;

double possible_experts(const config::RunConfig& config, double experts) {
  if (config.model.is_dense()) return 0;
  return std::clamp(experts, config.model.zero_experts > 0 ? 0.0 : 1.0,
                    static_cast<double>(config.model.num_experts));
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
  double optimizer_flops = 0;
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
    counts.all = checked_sum({counts.all, count});
    counts.slots = checked_sum({counts.slots, checked_product({count, optimizer->slots(spec).size()})});
    counts.optimizer_flops += optimizer->flops(spec);
    counts.held += held;
    counts.largest = std::max(counts.largest, count);
    counts.largest_held = std::max(counts.largest_held, held);
    if (!spec.compute_precision()) counts.fp32 += held;
    switch (spec.role) {
      case parameters::ParameterRole::kExpert:
        counts.experts += count;
        break;
      case parameters::ParameterRole::kMatrix:
      case parameters::ParameterRole::kOuterMatrix:
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
    bytes = checked_product({2, kFloat, std::min(held, std::max(subject.counts.largest_held, bucket))});
  }
  if (subject.dims.ep_size == 1) return bytes;
  const config::ModelConfig& model = subject.config.model;
  const double rows = expected_ranks(model.num_experts, subject.dims.ep_size, subject.most_active_experts) *
                      static_cast<double>(subject.config.training.micro_batch_size) *
                      static_cast<double>(subject.model.tokens_per_sample);
  const auto row = static_cast<double>(checked_product({static_cast<uint64_t>(model.hidden_size), width}));
  const auto gates = static_cast<double>(kFloat) * static_cast<double>(model.num_experts) /
                     static_cast<double>(subject.dims.ep_size);
  const auto layers = static_cast<double>(subject.model.num_routed_layers);
  return checked_sum({bytes, checked_round(rows * (layers * (row + gates) + 2 * row))});
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
  const uint64_t model = checked_product({subject.counts.all, kFloat});
  const uint64_t free_then =
      checked_sum({bytes_of(parts, "gradients"), bytes_of(parts, "micro_batch_gradients"),
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
  const uint64_t masters = (checked_product({counts.all, kFloat}) + n - 1) / n;
  // In fp32, a rank computes with its own main parameters, and needs copies only of those that other ranks
  // keep.
  const uint64_t in_fp32 = bf16 ? counts.fp32 : counts.held;
  const uint64_t kept_in_fp32 = bf16 ? counts.fp32 / n : counts.all / n;
  const uint64_t copies = checked_sum({checked_product({counts.held - in_fp32, kBfloat16}),
                                       checked_product({in_fp32 - kept_in_fp32, kFloat})});
  const bool several = subject.communication.micro_steps > 1;
  // One parameter's gradient at a time, before it is added. With parallel.reproducible, a rank forms its
  // experts' gradients separately for the rows of each rank of the EP group, to follow the tree over
  // micro-batches.
  const bool by_rank = subject.config.parallel.reproducible;
  const uint64_t micro_gradients =
      bf16 || several
          ? checked_product({by_rank ? counts.largest : counts.largest_held, bf16 ? kBfloat16 : kFloat})
          : 0;
  const uint64_t arising = several ? micro_gradients : checked_product({summed_elements(subject), kFloat});
  // On a CUDA device the allocator splits blocks for later tensors. The first layer's activations are
  // released only after all gradients exist.
  const uint64_t workspace = checked_sum({costs.workspace, costs.recomputed});
  const uint64_t later = cuda ? arising : checked_sum({arising, workspace});
  const uint64_t reused =
      std::min(later, cuda ? costs.activations - costs.first_layer
                           : checked_round(kReusedShare * static_cast<double>(costs.activations)));
  // With recomputation few activations are stored. The workspace then takes the memory that the loss has
  // released, too (measured).
  const bool takes_loss = !cuda && training.recompute != config::Recompute::kNone;
  const uint64_t released = takes_loss ? std::min({costs.released, later - reused, workspace}) : 0;
  std::vector<models::MemoryPart> parts = {
      {"parameters", masters},
      {"optimizer_moments", (checked_product({counts.slots, kFloat}) + n - 1) / n},
      {"average", subject.model.ema_decay > 0 ? masters : 0},
      {"gradients", checked_product({gradient_sums(subject), summed_elements(subject), kFloat})},
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

double expected_ranks(int64_t experts, int64_t ranks, double active) {
  const int64_t others = experts - experts / ranks;
  const auto none = [&](int64_t drawn) {  // probability that none of a rank's experts is among the drawn ones
    double probability = 1;
    for (int64_t i = 0; i < drawn; ++i)
      probability *= static_cast<double>(std::max<int64_t>(0, others - i)) / static_cast<double>(experts - i);
    return probability;
  };
  const auto whole = static_cast<int64_t>(active);
  const double missed =
      std::lerp(none(whole), none(std::min(whole + 1, experts)), active - static_cast<double>(whole));
  return static_cast<double>(ranks) * (1 - missed);
}

std::vector<CollectiveBytes> by_collective(const Communication& communication) {
  const auto rounded = [](const char* name, const SentBytes& sent) {
    return CollectiveBytes{name, checked_round(sent.inside), checked_round(sent.between)};
  };
  return {rounded("reduce_scatter", communication.ep_gradients + communication.edp_gradients),
          rounded("gather", communication.parameters), rounded("dispatch", communication.dispatch),
          rounded("combine", communication.combine), rounded("step", communication.step)};
}

uint64_t Plan::memory_bytes() const {
  uint64_t total = 0;
  for (const models::MemoryPart& part : memory) total = checked_sum({total, part.bytes});
  return total;
}

uint64_t Plan::memory_bytes(std::string_view part) const { return bytes_of(memory, part); }

Plan make_plan(const config::RunConfig& config, const distributed::ParallelDims& dims,
               config::Device device) {
  check_dims(dims, config.model);
  const config::TrainingConfig& training = config.training;
  if (training.global_batch_size / training.micro_batch_size < dims.world_size)
    throw config::InvalidValue("training.global_batch_size", training.global_batch_size,
                               " in micro-batches of ", training.micro_batch_size, " leaves some of ",
                               dims.world_size,
                               " ranks without any; lower training.micro_batch_size or the number of ranks");
  const models::Model model = models::make_model(config);
  Subject subject{
      config, model, count_parameters(model, config.optimizer, dims.ep_size), most_active_experts(config),
      dims,   device};
  const Counts& counts = subject.counts;
  Plan plan;
  plan.active_experts = possible_experts(config, config::mean_experts_of_run(config.routing));
  plan.parameters = counts.all;
  const double share =
      config.model.is_dense() ? 1.0 : plan.active_experts / static_cast<double>(config.model.num_experts);
  const uint64_t active_experts = checked_round(static_cast<double>(counts.experts) * share);
  plan.active_parameters = counts.all - counts.experts + active_experts;
  const uint64_t conditioning = counts.conditioning / static_cast<uint64_t>(model.tokens_per_sample);
  const models::StepCosts costs = models::model_costs(
      config.model, {training.micro_batch_size, plan.active_experts, kFloat, false, training.recompute});
  plan.flops_per_token =
      checked_sum({checked_product({6, checked_sum({counts.multiplied, active_experts, conditioning})}),
                   costs.attention_flops});
  const auto num_experts = static_cast<uint64_t>(config.model.num_experts);
  plan.flops_per_expert = config.model.is_dense() ? 0 : 6 * (counts.experts / num_experts);
  plan.fixed_flops_per_token = plan.flops_per_token - 6 * active_experts;
  if (config.model.is_dense()) plan.fixed_flops_per_token = plan.flops_per_token;
  plan.recomputed_flops_per_token = costs.recomputed_flops;
  plan.optimizer_flops = counts.optimizer_flops;

  plan.tokens_per_step = checked_product(
      {static_cast<uint64_t>(training.global_batch_size), static_cast<uint64_t>(model.tokens_per_sample)});
  plan.micro_batch_size = training.micro_batch_size;
  plan.dims = dims;
  plan.checkpoint_bytes = checked_product(
      {kFloat, checked_sum({counts.all, counts.slots, model.ema_decay > 0 ? counts.all : 0})});
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
          checked_sum({other.memory_bytes("parameters"), other.memory_bytes("optimizer_moments"),
                       other.memory_bytes("average")});
    if (plan.memory.empty() || other.memory_bytes() > plan.memory_bytes()) plan = other;
  }
  return plan;
}

}  // namespace dtopp::plan
