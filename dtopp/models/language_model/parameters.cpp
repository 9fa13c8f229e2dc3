#include "dtopp/models/language_model/parameters.h"

#include "dtopp/parameters/parameter_list.h"

namespace dtopp::models {

std::vector<parameters::ParameterSpec> language_model_parameters(const config::ModelConfig& model,
                                                                 const config::RoutingConfig& routing) {
  const int64_t D = model.hidden_size;
  parameters::ParameterList list(model, routing);
  list.matrix(
      "model.embed_tokens.weight", {model.vocab_size, D},
      model.tie_embeddings ? parameters::ParameterRole::kTiedLookUp : parameters::ParameterRole::kLookUp);
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    list.gain(prefix + "input_layernorm.weight", D);
    list.attention(prefix + "self_attn.");
    list.gain(prefix + "post_attention_layernorm.weight", D);
    list.feed_forward(prefix + "mlp.");
  }
  list.gain("model.norm.weight", D);
  if (!model.tie_embeddings) list.matrix("lm_head.weight", {model.vocab_size, D});
  return list.take();
}

}  // namespace dtopp::models
