// diffusion_transformer.cpp shows which tensors are stored.
#include "dtopp/models/block_costs.h"
#include "dtopp/models/diffusion_transformer/diffusion_transformer.h"

namespace dtopp::models {

StepCosts diffusion_transformer_costs(const config::ModelConfig& model, const CostInputs& inputs) {
  const BlockSizes s = block_sizes(model, inputs);
  const auto u = [](int64_t value) { return static_cast<uint64_t>(value); };
  const uint64_t images = checked_product(
      {u(inputs.micro_batch_size), u(model.channels), u(model.image_size), u(model.image_size), kFp32Bytes});
  StepCosts costs;
  // Besides a block's norms, autograd stores the inputs of the gates. It stores the input of the second gate
  // in any case. On a CUDA device, the outputs of the norms and the modulated outputs are two tensors.
  const uint64_t outputs = s.cuda ? 1 : 0;
  const BlockActivations block = block_activations(s, checked_product({1 + 2 * outputs, s.stream()}));
  costs.first_layer = checked_sum({block.stored, s.stream()});
  costs.recomputed = block.recomputed;
  // The embedded tokens; the last norm's input and outputs.
  costs.activations = checked_sum(
      {checked_product({s.L, costs.first_layer}), checked_product({3 + outputs, s.stream()}), images});
  // Image, noise, noised image, target, prediction and their difference.
  costs.loss = {"images", checked_product({6, images})};
  costs.workspace = checked_sum({block_workspace(s), s.stream()});
  costs.attention_flops = checked_product({12, s.L, s.queries, u(model.tokens_per_sample())});
  costs.recomputed_flops = recomputed_flops(s, costs.attention_flops);
  return costs;
}

}  // namespace dtopp::models
