// Defines the language model's part of the `model` section.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "dtopp/config/section_of.h"

namespace dtopp::config {

enum class NormType { kLayer, kRms };

constexpr auto enum_names(NormType) {
  return std::array<std::pair<NormType, std::string_view>, 2>{
      {{NormType::kLayer, "layer"}, {NormType::kRms, "rms"}}};
}

struct LanguageModelConfig {
  int64_t vocab_size = 0;
  int64_t sequence_length = 0;
  bool tie_embeddings = true;
  bool qkv_bias = false;  // queries, keys and values have biases
  // Norm of blocks, queries and keys, and the final one; rms: as in OLMoE.
  NormType norm = NormType::kLayer;
  double norm_eps = 1e-5;
  double rope_base = 10000.0;
  int64_t attention_window = 0;  // tokens that a token attends to, itself included; 0: all earlier ones
  bool attend_across_documents = true;  // false: a token attends only to its own document
};

void visit_fields(SectionOf<LanguageModelConfig> auto& config, auto&& field) {
  field("vocab_size", config.vocab_size);
  field("sequence_length", config.sequence_length);
  field("tie_embeddings", config.tie_embeddings);
  field("qkv_bias", config.qkv_bias);
  field("norm", config.norm);
  field("norm_eps", config.norm_eps);
  field("rope_base", config.rope_base);
  field("attention_window", config.attention_window);
  field("attend_across_documents", config.attend_across_documents);
}

}  // namespace dtopp::config
