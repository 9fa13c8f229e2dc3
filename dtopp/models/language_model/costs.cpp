// language_model.cpp shows which tensors are stored.
#include <algorithm>

#include "dtopp/models/block_costs.h"
#include "dtopp/models/language_model/language_model.h"

namespace dtopp::models {
namespace {

// A chunk on a CPU (ops/cross_entropy/linear_cross_entropy_cpu.cpp): bytes, but at least the logits of that
// many tokens.
constexpr uint64_t kCrossEntropyChunk = uint64_t{64} << 20, kFewestTokens = 256;
constexpr uint64_t kCudaLogits = uint64_t{1}
                                 << 30;  // fp32, per chunk (ops/cross_entropy/linear_cross_entropy_cuda.cpp)

// The logits of a chunk and tensors derived from them.
uint64_t logits_chunk(const BlockSizes& s, uint64_t V) {
  if (!s.cuda)
    return std::min(
        checked_product({s.T, V, 2 * kFp32Bytes}),
        std::max(kCrossEntropyChunk, checked_product({std::min(s.T, kFewestTokens), V, s.width})));
  // The gradients of the logits are separate tensors.
  const uint64_t logits = std::min(checked_product({s.T, V, kFp32Bytes}), kCudaLogits);
  return checked_sum({logits, logits / kFp32Bytes * s.width});
}

// The chunk, the weight's gradient in fp32, and the hidden states' gradient.
uint64_t cross_entropy(const BlockSizes& s, uint64_t V) {
  return checked_sum({logits_chunk(s, V), checked_product({V, s.D, kFp32Bytes}),
                      checked_product({s.T, s.D, s.cuda ? s.width : kFp32Bytes})});
}

// The bias of a window, per sample if samples have documents.
uint64_t window_bias(const BlockSizes& s, const config::ModelConfig& model) {
  const auto length = static_cast<uint64_t>(model.sequence_length);
  if (model.attention_window == 0 || model.attention_window >= model.sequence_length) return 0;
  return checked_product({model.attend_across_documents ? length : s.T, length, s.width});
}

}  // namespace

StepCosts language_model_costs(const config::ModelConfig& model, const CostInputs& inputs) {
  const BlockSizes s = block_sizes(model, inputs);
  const auto V = static_cast<uint64_t>(model.vocab_size);
  const uint64_t ends = checked_sum({checked_product({2, s.stream()}), checked_product({s.T, 16})});
  // A tied embedding has a second gradient, from its look-up.
  const uint64_t look_up = model.tie_embeddings ? checked_product({V, s.D, s.width}) : 0;
  StepCosts costs;
  const BlockActivations block = block_activations(s, 0);
  costs.first_layer = block.stored;
  costs.recomputed = block.recomputed;
  costs.activations = checked_sum({checked_product({s.L, costs.first_layer}), ends, window_bias(s, model)});
  costs.loss = {"cross_entropy", cross_entropy(s, V)};
  costs.released = logits_chunk(s, V);
  costs.workspace = checked_sum({block_workspace(s), look_up});
  costs.attention_flops = checked_product({6, s.L, s.queries, static_cast<uint64_t>(model.sequence_length)});
  costs.recomputed_flops = recomputed_flops(s, costs.attention_flops);
  return costs;
}

}  // namespace dtopp::models
