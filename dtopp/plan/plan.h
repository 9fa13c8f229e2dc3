// Estimates the cost of a run from its configuration alone: parameters, arithmetic, memory and communication.
#pragma once

#include "dtopp/config/run_config.h"
#include "dtopp/device/known_devices.h"
#include "dtopp/distributed/shard_layout.h"
#include "dtopp/models/costs.h"
#include "dtopp/models/model.h"

namespace dtopp::plan {

// Estimates the bytes that the ranks of a run send in an optimizer step.
//
// n ranks; k of them form an EP group and share the experts of every layer. R = n / k EDP ranks hold the same
// experts, q of them on each node. P_d and P_x: dense and expert parameters. D: hidden size, E: experts, c:
// bytes per element in the compute precision.

// Bytes that a rank sends: to ranks on its own node, and to ranks on other nodes.
struct SentBytes {
  double inside = 0, between = 0;

  double total() const { return inside + between; }
  SentBytes operator+(const SentBytes& other) const {
    return {inside + other.inside, between + other.between};
  }
};

// Bytes per rank and step, as the mean over ranks.
struct Communication {
  int64_t micro_steps = 1;   // forward and backward passes of the busiest rank
  double busiest_share = 1;  // its micro-batches divided by those of the mean rank
  // Ranks of the EP group that hold experts of a token, on average, itself included.
  // r = k (1 - C(E - E / k, a) / C(E, a)) for a active experts drawn at random.
  double rows_per_token = 0;
  double bucket_share = 0;  // share of gradient and parameter bytes that nothing hides: the last bucket
  // Gradients of dense parameters, to the EP group: (k - 1) / k 4 P_d, in each micro-step with
  // parallel.reproducible, else once.
  SentBytes ep_gradients;
  // Within a node (q - 1) / q 4 (P_d + P_x) / k; then between nodes (1 - q / R) 4 (P_d + P_x) / (k q).
  SentBytes edp_gradients;
  // The same ways with c instead of 4, and (k - 1) / k c P_d in the EP group. In addition, every rank of a
  // group sends as much as the rank with the largest shards of a bucket, which shows in small models.
  SentBytes parameters;
  // Rows to the ranks that hold their experts, and back. Per token and layer:
  // dispatch 2 (k - 1) / k r (D c + 4 E / k), combine 2 (k - 1) / k r D c.
  SentBytes dispatch, combine;
  SentBytes step;  // the values of the step, 2 (n - 1) / n 8 each
};

// The bytes under the names of the collectives (distributed/collectives.h), rounded.
struct CollectiveBytes {
  std::string name;
  uint64_t inside = 0, between = 0;
};
std::vector<CollectiveBytes> by_collective(const Communication& communication);

// The expected number of ranks that hold at least one of `active` experts drawn at random. Each of `ranks`
// ranks holds an equal share of `experts` experts. A fractional `active` is interpolated.
double expected_ranks(int64_t experts, int64_t ranks, double active);

struct Plan {
  // Active experts per token and layer, on average: the target, k, or for top_p (which fixes no number)
  // routing.experts. 0: dense.
  double active_experts = 0;
  uint64_t parameters = 0;         // elements of all parameters; a tied embedding counts once
  uint64_t active_parameters = 0;  // the same with active_experts instead of num_experts experts

  // Forward and backward FLOPs per token. Each matrix element that a token uses counts 6: attention, router,
  // active experts or FFN, output projection, but not the embedding lookup. Elements used once per sample are
  // divided by its tokens. Attention adds per layer 6 D S at sequence length S if it is causal (each token
  // attends to S / 2 others on average), else 12 D S.
  uint64_t flops_per_token = 0;
  // flops_per_token = fixed_flops_per_token + active_experts flops_per_expert, rounded.
  uint64_t fixed_flops_per_token = 0;
  uint64_t flops_per_expert = 0;            // per token, for one more active expert in each layer; 0: dense
  uint64_t recomputed_flops_per_token = 0;  // further ones, because of training.recompute

  double optimizer_flops = 0;    // per step, over all ranks: Muon's products
  uint64_t tokens_per_step = 0;  // per global batch
  int64_t micro_batch_size = 0;
  distributed::ParallelDims dims;
  // auto is resolved to bf16 on a CUDA device, else to the precision that needs more memory.
  config::Precision precision = config::Precision::kFp32;
  bool either_precision = false;  // the processor that trains decides

  uint64_t gradient_sums = 1;  // held by a rank at once; more than one only with parallel.reproducible

  // Peak memory of a rank, in bytes, in these parts. P: parameters, n: ranks, k: size of the EP group, T:
  // tokens per micro-batch, D: hidden size, E: experts, L: layers, c: bytes per activation.
  //
  // - parameters: fp32 main parameters, sharded over the ranks (ZeRO-1): 4 P / n;
  // - optimizer_moments: in fp32, sharded likewise: 8 P / n; with Muon 4 per element of its matrices;
  // - average: the moving average of the parameters, if the model keeps one: 4 P / n;
  // - gradients: 4 bytes per element of each sum: with parallel.reproducible gradient_sums of P / k elements,
  //   else one sum of the elements that the rank holds;
  // - compute_copies: 2 bytes per bf16 parameter held, 4 per fp32 parameter whose main parameter another rank
  //   keeps;
  // - micro_batch_gradients: the largest parameter's gradient before it is added, in bf16 or with several
  //   micro-batches;
  // - activations: StepCosts::activations minus what gradients and workspace reuse: on a CPU at most 0.6 of
  //   them, on a CUDA device all but those of the first layer;
  // - exchange_buffers: 2 buckets of gradients in fp32, sent and received. With k > 1 also, for r =
  //   rows_per_token, r T (L (D c + 4 E / k) + 2 D c): rows of other ranks with their gates, kept for the
  //   backward pass, and the rows of one layer in transit;
  // - cross_entropy or images: what the loss needs (StepCosts::loss);
  // - workspace: temporary tensors of one layer's backward pass (StepCosts::workspace) and what it computes
  //   again (StepCosts::recomputed); with training.recompute on a CPU minus what both reuse of the loss
  //   (StepCosts::released);
  // - program: the program and its libraries;
  // - task_model: 4 P minus gradients and activations, if validation.tasks or samples need more than a step.
  std::vector<models::MemoryPart> memory;
  uint64_t memory_bytes() const;  // sum of all parts
  uint64_t memory_bytes(std::string_view part) const;

  // Host memory for asynchronous checkpoints besides `memory`: a snapshot of the parameters, moments and
  // average that a rank keeps. 0: checkpoint.asynchronous is false, or no checkpoint but the last is due.
  uint64_t snapshot_bytes = 0;

  uint64_t checkpoint_bytes = 0;  // of its tensors on disk: parameters, moments and average, in fp32

  Communication communication;
};

// Plans a run on a CUDA device (kCuda) or, for every other value, on a CPU. The degree of expert parallelism
// is that of `dims`, because the configured one may be auto.
//
// Throws:        InvalidValue if sizes overflow or exceed the limits of the CUDA kernels (cuda_types.h), if
//                the dims are not possible (check_dims), or if a rank has no micro-batch
Plan make_plan(const config::RunConfig& config, const distributed::ParallelDims& dims = {},
               config::Device device = config::Device::kCpu);

// The share of memory that a plan should leave free, because it cannot predict what an allocator cannot use.
inline constexpr double kSpareMemory = 0.05;

// The largest training.micro_batch_size that divides the global batch, gives every rank micro-batches and
// leaves kSpareMemory of a rank's memory free. nullopt if there is none.
std::optional<int64_t> largest_micro_batch(config::RunConfig config, const distributed::ParallelDims& dims,
                                           config::Device device, uint64_t memory);

// Throws a ResourceError that names a remedy if the plan of this run on `device` needs more memory than
// `available`.
void require_memory(const config::RunConfig& config, const Plan& plan, config::Device device,
                    uint64_t available);

// Recommends a degree of expert parallelism for a run, by the plans for all possible degrees.

// Estimates the time of an optimizer step on a device with assumed rates (device/known_devices.h). Nothing is
// measured; latencies do not count.

// Seconds of the busiest rank.
struct StepTime {
  double compute = 0;  // FLOPs of its tokens / FLOP/s; a third of the model's FLOPs are forward
  double rows = 0;     // rows to other ranks' experts and back; nothing hides them
  // Gradient communication that the backward pass of the last micro-step does not hide (within the EP group:
  // of all micro-steps): the seconds beyond 90 % of the pass, at least those of the last bucket.
  double gradients = 0;
  double parameters = 0;  // the same for parameters and the first forward pass
  double update = 0;      // 30 bytes per parameter that the rank keeps / bytes per second of its memory, and
                          // its share of optimizer_flops / its rate
  double mfu = 0;         // model FLOPs divided by what all devices could compute in the step

  double seconds() const { return compute + rows + gradients + parameters + update; }
};

StepTime plan_step_time(const Plan& plan, const device::DeviceRates& rates);

// Throws UsageError if nodes do not divide the ranks, or if EP groups do not divide the ranks of a node or
// the model's experts.
void check_dims(const distributed::ParallelDims& dims, const config::ModelConfig& model);

// The possible degrees of expert parallelism on these ranks and nodes, from 1 up.
std::vector<int64_t> possible_expert_parallel(const distributed::ParallelDims& dims,
                                              const config::ModelConfig& model);

// Plans for all possible degrees, from 1 up. It ignores dims.ep_size.
std::vector<Plan> plans_by_expert_parallel(const config::RunConfig& config,
                                           const distributed::ParallelDims& dims, config::Device device);

struct Recommendation {
  int64_t expert_parallel = 1;
  std::string reason{};  // one sentence
  // Degree with the shortest step among those that fit, if the device's rates are known.
  int64_t fastest = 1;
};

// Recommends the first plan that fits the device. It sends the fewest rows, because the
// fewest ranks share experts. If none fits, it recommends the plan that needs the least memory.
Recommendation recommend(const std::vector<Plan>& plans, const device::PlanDevice& device);

// The degree for a run on these ranks and nodes: the configured one, checked by check_dims. With `auto` it
// is the recommended one for `memory_bytes` of memory per rank.
int64_t expert_parallel_of(const config::RunConfig& config, const distributed::ParallelDims& dims,
                           config::Device device, uint64_t memory_bytes);

// Prints a plan for `dtopp plan`, as a table or as JSON.

// Information that is printed with a plan.
struct PlanContext {
  std::optional<device::PlanDevice> device{};    // device for which fit and step time are shown
  std::vector<Plan> alternatives{};              // plans for every possible degree of expert parallelism
  std::optional<int64_t> largest_micro_batch{};  // on the device; nullopt: none fits
};

// One row per figure: parameters, arithmetic, memory by part, bytes by collective. With a device it also
// shows whether the plan fits, the largest micro-batch that does, and the time per step. If there are several
// alternatives, it lists them with the recommended one.
std::string plan_table(const Plan& plan, const config::RunConfig& config, const PlanContext& context);

// The same figures as one JSON object on one line.
std::string plan_json(const Plan& plan, const PlanContext& context);

}  // namespace dtopp::plan
