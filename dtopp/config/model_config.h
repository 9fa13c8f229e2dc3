// The `model` section: the shape of a transformer.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

namespace dtopp {

enum class ModelType { kLanguageModel };

constexpr auto enum_names(ModelType) {
  return std::array<std::pair<ModelType, std::string_view>, 1>{
      {{ModelType::kLanguageModel, "language_model"}}};
}

struct ModelConfig {
  ModelType type = ModelType::kLanguageModel;
  int64_t hidden_size = 2048;
  int64_t num_layers = 16;
  int64_t num_heads = 16;
  int64_t ffn_hidden_size = 1024;  // of one expert; of the whole FFN where num_experts is 1
  int64_t num_experts = 64;        // 1: dense
  int64_t vocab_size = 50432;
  int64_t sequence_length = 2048;
  bool tie_embeddings = true;
  double init_std = 0.02;
  bool scale_residual_init = false;  // divide the std of o_proj and down_proj by sqrt(2 num_layers)

  bool is_dense() const { return num_experts == 1; }
  int64_t head_size() const { return hidden_size / num_heads; }
};

template <class Config, class Visitor>
requires std::same_as<std::remove_const_t<Config>, ModelConfig>
void visit_fields(Config& config, Visitor&& field) {
  field("type", config.type);
  field("hidden_size", config.hidden_size);
  field("num_layers", config.num_layers);
  field("num_heads", config.num_heads);
  field("ffn_hidden_size", config.ffn_hidden_size);
  field("num_experts", config.num_experts);
  field("vocab_size", config.vocab_size);
  field("sequence_length", config.sequence_length);
  field("tie_embeddings", config.tie_embeddings);
  field("init_std", config.init_std);
  field("scale_residual_init", config.scale_residual_init);
}

// Throws UsageError naming the key: sizes below 1, hidden_size not divisible by num_heads, odd head size
// (RoPE).
void validate(const ModelConfig& config);

}  // namespace dtopp
