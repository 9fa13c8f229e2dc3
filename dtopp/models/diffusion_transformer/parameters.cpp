#include "dtopp/models/diffusion_transformer/diffusion_transformer.h"
#include "dtopp/models/diffusion_transformer/positions.h"
#include "dtopp/parameters/parameter_list.h"

namespace dtopp::models {

std::vector<parameters::ParameterSpec> diffusion_transformer_parameters(
    const config::ModelConfig& model, const config::RoutingConfig& routing) {
  const int64_t D = model.hidden_size, V = model.patch_values();
  constexpr parameters::ParameterRole kConditioning = parameters::ParameterRole::kConditioning;
  parameters::ParameterList list(model, routing);
  list.matrix("patch_embed.weight", {D, V});
  list.shift("patch_embed.bias", {D});
  if (model.text_length > 0) {
    list.matrix("text_embed.weight", {D, model.text_size});
    list.shift("text_embed.bias", {D});
  }
  list.matrix("time_embed.0.weight", {D, kTimestepFeatures}, kConditioning);
  list.shift("time_embed.0.bias", {D});
  list.matrix("time_embed.2.weight", {D, D}, kConditioning);
  list.shift("time_embed.2.bias", {D});
  // The last row stands for no class.
  if (model.num_classes > 0)
    list.matrix("class_embed.weight", {model.num_classes + 1, D}, parameters::ParameterRole::kLookUp);
  list.zero_matrix("modulation.weight", {6 * D, D}, kConditioning);
  list.shift("modulation.bias", {6 * D});
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string prefix = "blocks." + std::to_string(layer) + ".";
    list.shift(prefix + "modulation", {6, D});
    list.attention(prefix + "attention.");
    list.feed_forward(prefix + "mlp.");
  }
  list.zero_matrix("final.modulation.weight", {2 * D, D}, kConditioning);
  list.shift("final.modulation.bias", {2 * D});
  list.shift("final.table", {2, D});
  list.zero_matrix("final.proj.weight", {V, D});
  list.shift("final.proj.bias", {V});
  return list.take();
}

}  // namespace dtopp::models
