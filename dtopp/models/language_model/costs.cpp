// See language_model.cpp for what is kept, docs/plan.md for the formulas.
#include <algorithm>
#include <bit>

#include "dtopp/config/config.h"
#include "dtopp/models/language_model/language_model.h"
#include "dtopp/moe/pair_limits.h"
#include "dtopp/ops/cuda_limits.h"

namespace dtopp {
namespace {

constexpr uint64_t kFp32 = 4;  // bytes
constexpr uint64_t kCrossEntropyChunk = uint64_t{96} << 20;
constexpr uint64_t kCudaLogits = uint64_t{1} << 30;  // fp32, of a chunk (ops/linear_cross_entropy_cuda.cpp)

struct Sizes {
  uint64_t T, D, L, H, F, E, V;  // T: tokens of a micro-batch
  uint64_t pairs;  // token-expert pairs of a layer and micro-batch; on a CUDA device, room for them
  uint64_t width;  // bytes of an activation
  bool dense, cuda;
};

Sizes sizes_of(const ModelConfig& model, const CostInputs& inputs) {
  const auto u = [](int64_t value) { return static_cast<uint64_t>(value); };
  Sizes s{};
  s.T = checked_product({u(inputs.micro_batch_size), u(model.sequence_length)});
  s.D = u(model.hidden_size);
  s.L = u(model.num_layers);
  s.H = u(model.num_heads);
  s.F = u(model.ffn_hidden_size);
  s.E = u(model.num_experts);
  s.V = u(model.vocab_size);
  s.cuda = inputs.cuda;
  s.dense = model.is_dense();
  s.pairs = checked_round(static_cast<double>(s.T) * inputs.active_experts * (s.cuda ? kPairMargin : 1.0));
  s.width = inputs.width;
  return s;
}

// Throws where the kernels for CUDA devices would refuse the sizes.
void require_cuda_limits(const Sizes& s) {
  const auto require = [](const char* key, const std::string& what, uint64_t count, int64_t most) {
    if (count <= static_cast<uint64_t>(most)) return;
    throw InvalidValue(key, what + std::to_string(count) + ", and a CUDA device takes at most " +
                                std::to_string(most) + ": make it smaller, or set training.device to cpu");
  };
  require("model.hidden_size", "", s.D, cuda::kWidestNorm);
  if (s.dense) return;
  require("model.num_experts", "", s.E, cuda::kMostExperts);
  require("training.micro_batch_size", "its tokens times the experts are ",
          std::max(checked_product({s.T, s.E}), s.pairs), cuda::kMostPairs);
}

// What autograd keeps of one block.
uint64_t layer_activations(const Sizes& s) {
  const uint64_t stream = checked_product({s.T, s.D, s.width});
  // Two norms keep their inputs, mean and 1 / sigma; their outputs feed the projections.
  const uint64_t norms = checked_sum({checked_product({4, stream}), checked_product({s.T, 4 * kFp32})});
  // q and k before their norms; q, k, v and the result for attention; its logsumexp.
  const uint64_t attention = checked_sum({checked_product({6, stream}), checked_product({s.T, s.H, kFp32})});
  if (s.dense) {
    // Gate and up, silu(gate), and its product with up.
    return checked_sum({norms, attention, checked_product({s.T, 4, s.F, s.width})});
  }
  // The router's input in fp32, its logits and the gates.
  const uint64_t input = s.width == kFp32 ? 0 : checked_product({s.T, s.D, kFp32});
  const uint64_t router = checked_sum({input, checked_product({s.T, s.E, 2 * kFp32})});
  // Gate and up before the activation.
  const uint64_t experts = checked_product({s.pairs, 2, s.F, s.width});
  return checked_sum({norms, attention, router, experts});
}

// Logits of a chunk with what becomes of them, the weight's gradient in fp32 and that of the hidden states.
uint64_t cross_entropy(const Sizes& s) {
  const uint64_t weight = checked_product({s.V, s.D, kFp32});
  if (!s.cuda) {
    const uint64_t chunk = std::min(checked_product({s.T, s.V, 2 * kFp32}), kCrossEntropyChunk);
    return checked_sum({chunk, weight, checked_product({s.T, s.D, kFp32})});
  }
  // Their gradients are formed beside them.
  const uint64_t logits = std::min(checked_product({s.T, s.V, kFp32}), kCudaLogits);
  return checked_sum({logits, logits / kFp32 * s.width, weight, checked_product({s.T, s.D, s.width})});
}

// Sums that a token has beside the one that becomes its result, while its experts' rows are added along a
// tree over the experts (ops/moe_ffn_cpu.h).
uint64_t sum_slots(const Sizes& s) {
  const uint64_t active = (s.pairs + s.T - 1) / s.T;
  return std::min<uint64_t>(std::bit_width(s.E - 1), std::max<uint64_t>(active, 1) - 1);
}

// What the backward pass of one layer holds for a moment.
uint64_t layer_workspace(const Sizes& s) {
  const uint64_t streams = checked_product({3, s.T, s.D, s.width});
  const uint64_t rows = s.dense ? s.T : s.pairs;
  if (!s.cuda) {
    const uint64_t sums = s.dense ? 0 : checked_product({sum_slots(s), s.T, s.D, kFp32});
    return checked_sum({streams, checked_product({rows, 3, s.F, s.width}), sums});
  }
  const uint64_t ffn = checked_product({rows, 4, s.F, s.width});
  if (s.dense) return checked_sum({streams, ffn});
  // The rows gathered from the gradient of the output, and where each pair lies.
  return checked_sum(
      {streams, ffn, checked_product({rows, s.D, s.width}), checked_product({s.T, s.E, kFp32})});
}

}  // namespace

StepCosts language_model_costs(const ModelConfig& model, const CostInputs& inputs) {
  const Sizes s = sizes_of(model, inputs);
  if (s.cuda) require_cuda_limits(s);
  const uint64_t ends = checked_sum({checked_product({2, s.T, s.D, s.width}), checked_product({s.T, 16})});
  // A tied embedding gets a second gradient, from its look-up.
  const uint64_t look_up = model.tie_embeddings ? checked_product({s.V, s.D, s.width}) : 0;
  StepCosts costs;
  costs.first_layer = layer_activations(s);
  costs.activations = checked_sum({checked_product({s.L, costs.first_layer}), ends});
  costs.loss = {"cross_entropy", cross_entropy(s)};
  costs.workspace = checked_sum({layer_workspace(s), look_up});
  costs.attention_flops = checked_product({6, s.L, s.D, static_cast<uint64_t>(model.sequence_length)});
  return costs;
}

}  // namespace dtopp
