#include "dtopp/plan/plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <utility>

#include "dtopp/base/progress.h"
#include "dtopp/config/config.h"
#include "dtopp/models/parameters.h"
#include "dtopp/moe/pair_limits.h"

namespace dtopp {
namespace {

constexpr uint64_t kFloat = 4;  // bytes
constexpr uint64_t kBfloat16 = 2;
constexpr uint64_t kCrossEntropyChunk = uint64_t{96} << 20;
constexpr uint64_t kCudaLogits = uint64_t{1} << 30;  // fp32, of a chunk (ops/linear_cross_entropy_cuda.cpp)
constexpr uint64_t kProgram = uint64_t{128} << 20;   // the program and libtorch, measured
// A context with the kernels it has loaded, and the workspaces of cuBLAS and cuBLASLt.
constexpr uint64_t kCudaProgram = uint64_t{512 + 2 * 32} << 20;
// Of the activations: what gradients and workspace take over as the backward pass releases it; the rest lies
// in pieces too small for them (benchmarks/training_cost.py).
constexpr double kReusedShare = 0.6;
constexpr uint64_t kGiB = uint64_t{1} << 30;

[[noreturn]] void throw_uncountable() {
  throw InvalidValue("model", "its sizes multiply to more than can be counted: make it smaller");
}

uint64_t product(std::initializer_list<uint64_t> factors) {
  uint64_t result = 1;
  for (const uint64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result)) throw_uncountable();
  }
  return result;
}

uint64_t sum(std::initializer_list<uint64_t> terms) {
  uint64_t result = 0;
  for (const uint64_t term : terms) {
    if (__builtin_add_overflow(result, term, &result)) throw_uncountable();
  }
  return result;
}

uint64_t rounded(double value) {
  if (!(value < 0x1p63)) throw_uncountable();
  return static_cast<uint64_t>(std::llround(value));
}

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
  uint64_t matrices = 0;   // but experts and embedding
  uint64_t embedding = 0;  // what a token looks up
};

Counts count_parameters(const RunConfig& config) {
  Counts counts;
  for (const ParameterSpec& spec : language_model_parameters(config.model, config.routing)) {
    const auto count = static_cast<uint64_t>(spec.count());
    counts.all = sum({counts.all, count});
    if (spec.compute_precision) counts.compute_precision += count;
    if (spec.expert) {
      counts.experts += count;
    } else if (spec.name == "model.embed_tokens.weight") {
      counts.embedding += count;
    } else if (spec.shape.size() > 1) {
      counts.matrices += count;
    }
  }
  return counts;
}

struct Sizes {
  uint64_t T, D, L, H, F, E, V;  // T: tokens of a micro-batch
  uint64_t pairs;  // token-expert pairs of a layer and micro-batch; on a CUDA device, room for them
  uint64_t width;  // bytes of an activation
  bool dense, cuda;
};

Sizes sizes_of(const RunConfig& config, double active_experts, uint64_t width, Device device) {
  const ModelConfig& model = config.model;
  const auto u = [](int64_t value) { return static_cast<uint64_t>(value); };
  Sizes s{};
  s.T = product({u(config.training.micro_batch_size), u(model.sequence_length)});
  s.D = u(model.hidden_size);
  s.L = u(model.num_layers);
  s.H = u(model.num_heads);
  s.F = u(model.ffn_hidden_size);
  s.E = u(model.num_experts);
  s.V = u(model.vocab_size);
  s.cuda = device == Device::kCuda;
  s.dense = model.is_dense();
  s.pairs = rounded(static_cast<double>(s.T) * active_experts * (s.cuda ? kPairMargin : 1.0));
  s.width = width;
  return s;
}

// What autograd keeps of one block (see language_model.cpp).
uint64_t layer_activations(const Sizes& s) {
  const uint64_t stream = product({s.T, s.D, s.width});
  // Two norms keep their inputs, mean and 1 / sigma; their outputs feed the projections.
  const uint64_t norms = sum({product({4, stream}), product({s.T, 4 * kFloat})});
  // q and k before their norms; q, k, v and the result for attention; its logsumexp.
  const uint64_t attention = sum({product({6, stream}), product({s.T, s.H, kFloat})});
  if (s.dense) {
    // Gate and up, silu(gate), and its product with up.
    return sum({norms, attention, product({s.T, 4, s.F, s.width})});
  }
  // The router's input in fp32, its logits and the gates.
  const uint64_t input = s.width == kFloat ? 0 : product({s.T, s.D, kFloat});
  const uint64_t router = sum({input, product({s.T, s.E, 2 * kFloat})});
  // Gate and up before the activation.
  const uint64_t experts = product({s.pairs, 2, s.F, s.width});
  return sum({norms, attention, router, experts});
}

// Logits of a chunk with what becomes of them, the weight's gradient in fp32 and that of the hidden states.
uint64_t cross_entropy(const Sizes& s) {
  const uint64_t weight = product({s.V, s.D, kFloat});
  if (!s.cuda) {
    const uint64_t chunk = std::min(product({s.T, s.V, 2 * kFloat}), kCrossEntropyChunk);
    return sum({chunk, weight, product({s.T, s.D, kFloat})});
  }
  // Their gradients are formed beside them.
  const uint64_t logits = std::min(product({s.T, s.V, kFloat}), kCudaLogits);
  return sum({logits, logits / kFloat * s.width, weight, product({s.T, s.D, s.width})});
}

// What the backward pass of one layer holds for a moment.
uint64_t layer_workspace(const Sizes& s) {
  const uint64_t streams = product({3, s.T, s.D, s.width});
  const uint64_t rows = s.dense ? s.T : s.pairs;
  if (!s.cuda) return sum({streams, product({rows, 3, s.F, s.width})});
  const uint64_t ffn = product({rows, 4, s.F, s.width});
  if (s.dense) return sum({streams, ffn});
  // The rows gathered from the gradient of the output, and where each pair lies.
  return sum({streams, ffn, product({rows, s.D, s.width}), product({s.T, s.E, kFloat})});
}

std::vector<MemoryPart> plan_memory(const RunConfig& config, const Counts& counts, double active_experts,
                                    Precision precision, int64_t ranks, Device device) {
  const bool bf16 = precision == Precision::kBf16;
  const Sizes s = sizes_of(config, active_experts, bf16 ? kBfloat16 : kFloat, device);
  const auto n = static_cast<uint64_t>(ranks);
  const uint64_t masters = product({counts.all, kFloat});
  const uint64_t copies = bf16 ? product({counts.compute_precision, kBfloat16}) : 0;
  const bool several = config.training.global_batch_size > config.training.micro_batch_size * ranks;
  const uint64_t others = product({counts.all - counts.compute_precision, kFloat});
  const uint64_t micro_gradients = bf16 ? sum({copies, others}) : several ? masters : 0;
  const uint64_t ends = sum({product({2, s.T, s.D, s.width}), product({s.T, 16})});
  // A tied embedding gets a second gradient, from its look-up.
  const uint64_t look_up = config.model.tie_embeddings ? product({s.V, s.D, bf16 ? kBfloat16 : kFloat}) : 0;
  const uint64_t workspace = sum({layer_workspace(s), look_up});
  const uint64_t layer = layer_activations(s);
  const uint64_t activations = sum({product({s.L, layer}), ends});
  const uint64_t arising = micro_gradients > 0 ? micro_gradients : masters;
  // On a CUDA device blocks are split for what comes next; the first layer's go when every gradient is there.
  const uint64_t reused =
      s.cuda ? std::min(arising, activations - layer)
             : std::min(sum({arising, workspace}), rounded(kReusedShare * static_cast<double>(activations)));
  return {{"parameters", masters},
          {"optimizer_moments", (product({2, masters}) + n - 1) / n},
          {"gradients", masters},
          {"compute_copies", copies},
          {"micro_batch_gradients", micro_gradients},
          {"activations", activations - reused},
          {"cross_entropy", cross_entropy(s)},
          {"workspace", workspace},
          {"program", s.cuda ? kCudaProgram : kProgram}};
}

}  // namespace

uint64_t Plan::memory_bytes() const {
  uint64_t total = 0;
  for (const MemoryPart& part : memory) total = sum({total, part.bytes});
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
  if (training.global_batch_size / training.micro_batch_size % ranks != 0)
    throw InvalidValue("training.global_batch_size", std::to_string(training.global_batch_size) +
                                                         " is no multiple of " + std::to_string(ranks) +
                                                         " ranks x training.micro_batch_size " +
                                                         std::to_string(training.micro_batch_size));
  const Counts counts = count_parameters(config);
  Plan plan;
  plan.active_experts = mean_active_experts(config);
  plan.parameters = counts.all;
  const double share =
      config.model.is_dense() ? 1.0 : plan.active_experts / static_cast<double>(config.model.num_experts);
  const uint64_t active_experts = rounded(static_cast<double>(counts.experts) * share);
  plan.active_parameters = counts.all - counts.experts + active_experts;

  const Sizes s = sizes_of(config, plan.active_experts, kFloat, device);
  const uint64_t projection = config.model.tie_embeddings ? counts.embedding : 0;
  const auto length = static_cast<uint64_t>(config.model.sequence_length);
  plan.flops_per_token =
      sum({product({6, sum({counts.matrices, active_experts, projection})}), product({6, s.L, s.D, length})});

  plan.tokens_per_step = product({static_cast<uint64_t>(training.global_batch_size), length});
  plan.micro_batch_size = training.micro_batch_size;
  plan.ranks = ranks;
  plan.precision = training.precision;
  if (plan.precision == Precision::kAuto && device == Device::kCuda) plan.precision = Precision::kBf16;
  if (plan.precision != Precision::kAuto) {
    plan.memory = plan_memory(config, counts, plan.active_experts, plan.precision, ranks, device);
  } else {
    for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
      Plan other = plan;
      other.precision = precision;
      other.memory = plan_memory(config, counts, plan.active_experts, precision, ranks, device);
      if (plan.memory.empty() || other.memory_bytes() > plan.memory_bytes()) plan = other;
    }
  }
  const auto n = static_cast<uint64_t>(ranks);
  plan.wire_bytes_per_step = product({2 * (n - 1), counts.all, kFloat}) / n;
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
  const std::string remedy =
      fitting > 0 ? "lower training.micro_batch_size from " + std::to_string(micro) + " to " +
                        std::to_string(fitting) + " or less"
                  : "make the model smaller (model.num_layers, hidden_size, num_experts) or use a machine "
                    "with more memory";
  throw ResourceError("this run needs about " + format_bytes(static_cast<double>(needed)) +
                      " of memory and " + format_bytes(static_cast<double>(available)) +
                      " are available: " + remedy + " (`dtopp plan` shows the parts)");
}

}  // namespace dtopp
