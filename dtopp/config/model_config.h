// The `model` section: the type of model, the shape of a transformer, and what belongs to one type alone.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include "dtopp/config/diffusion_config.h"
#include "dtopp/config/language_model_config.h"

namespace dtopp {

enum class ModelType { kLanguageModel, kDiffusionTransformer };

constexpr auto enum_names(ModelType) {
  return std::array<std::pair<ModelType, std::string_view>, 2>{
      {{ModelType::kLanguageModel, "language_model"},
       {ModelType::kDiffusionTransformer, "diffusion_transformer"}}};
}

// Each type's own part is a base, so that its keys stand in the section beside the others.
struct ModelConfig : LanguageModelConfig, DiffusionTransformerConfig {
  ModelType type = ModelType::kLanguageModel;
  int64_t hidden_size = 2048;
  int64_t num_layers = 16;
  int64_t num_heads = 16;
  int64_t ffn_hidden_size = 1024;  // of one expert; of the whole FFN where num_experts is 1
  int64_t num_experts = 64;        // 1: dense
  double init_std = 0.02;
  bool scale_residual_init = false;  // divide the std of o_proj and down_proj by sqrt(2 num_layers)

  bool is_dense() const { return num_experts == 1; }
  int64_t head_size() const { return hidden_size / num_heads; }
  // Of a window; of an image with its text.
  int64_t tokens_per_sample() const {
    return type == ModelType::kLanguageModel ? sequence_length : text_length + image_tokens();
  }
};

inline LanguageModelConfig& language_model_part(ModelConfig& config) { return config; }
inline const LanguageModelConfig& language_model_part(const ModelConfig& config) { return config; }
inline DiffusionTransformerConfig& diffusion_transformer_part(ModelConfig& config) { return config; }
inline const DiffusionTransformerConfig& diffusion_transformer_part(const ModelConfig& config) {
  return config;
}

template <class Config, class Visitor>
requires std::same_as<std::remove_const_t<Config>, ModelConfig>
void visit_fields(Config& config, Visitor&& field) {
  field("type", config.type);
  field("hidden_size", config.hidden_size);
  field("num_layers", config.num_layers);
  field("num_heads", config.num_heads);
  field("ffn_hidden_size", config.ffn_hidden_size);
  field("num_experts", config.num_experts);
  // The keys of other types are unknown to this one.
  switch (config.type) {
    case ModelType::kLanguageModel:
      visit_fields(language_model_part(config), field);
      break;
    case ModelType::kDiffusionTransformer:
      visit_fields(diffusion_transformer_part(config), field);
      break;
  }
  field("init_std", config.init_std);
  field("scale_residual_init", config.scale_residual_init);
}

// Throws UsageError naming the key: sizes below 1 or that do not divide, a head size that rotary positions
// cannot halve (of a language model) or quarter (of images).
void validate(const ModelConfig& config);

}  // namespace dtopp
