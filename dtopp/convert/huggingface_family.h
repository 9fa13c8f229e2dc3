// Describes the model classes that checkpoints are converted to and from: dtopp's own, whose code is stored
// beside the weights, and classes that transformers and other programs include.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "dtopp/config/model_config.h"

namespace dtopp::convert {

enum class HuggingFaceClass { kDtopp, kOlmoe, kMixtral, kQwen2Moe, kQwen3Moe };

// The `model_type` of config.json.
constexpr auto enum_names(HuggingFaceClass) {
  return std::array<std::pair<HuggingFaceClass, std::string_view>, 5>{
      {{HuggingFaceClass::kDtopp, "dtopp"},
       {HuggingFaceClass::kOlmoe, "olmoe"},
       {HuggingFaceClass::kMixtral, "mixtral"},
       {HuggingFaceClass::kQwen2Moe, "qwen2_moe"},
       {HuggingFaceClass::kQwen3Moe, "qwen3_moe"}}};
}

struct HuggingFaceFamily {
  const char* architecture;  // of the language model
  config::QkNorm qk_norm;
  // Defaults of keys of config.json. 0 heads: num_attention_heads.
  double norm_eps, rope_base;
  int64_t num_kv_heads, top_k;
  // Keys of config.json: F of an expert, and the number of experts.
  const char *ffn_key, *experts_key;
  // Names of tensors: "model.layers.3.<layer>experts.7.<gate>.weight".
  std::string_view layer, gate, up, down;
};

const HuggingFaceFamily& family_of(HuggingFaceClass name);

}  // namespace dtopp::convert
