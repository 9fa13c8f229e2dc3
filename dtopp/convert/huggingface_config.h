// Writes and reads config.json of transformers.
#pragma once

#include "dtopp/base/errors.h"
#include "dtopp/config/model_config.h"
#include "dtopp/config/run_config.h"

namespace dtopp::convert {

// Describes the model classes that checkpoints are converted to and from: dtopp's own, whose code is stored
// beside the weights, and classes that transformers and other programs include.

enum class HuggingFaceClass { kDtopp, kOlmoe, kMixtral, kQwen2Moe, kQwen3Moe };

// The `model_type` of config.json.
constexpr auto enum_names(HuggingFaceClass) {
  return std::to_array<std::string_view>({"dtopp", "olmoe", "mixtral", "qwen2_moe", "qwen3_moe"});
}

struct HuggingFaceFamily {
  const char* architecture;  // of the language model
  config::QkNorm qk_norm = config::QkNorm::kWhole;
  // Defaults of keys of config.json. 0 heads: num_attention_heads.
  double norm_eps = 1e-5, rope_base = 10000;
  int64_t num_kv_heads = 0, top_k = 8;
  // Keys of config.json: F of an expert, and the number of experts.
  const char *ffn_key = "intermediate_size", *experts_key = "num_experts";
  // Names of tensors: "model.layers.3.<layer>experts.7.<gate>.weight".
  std::string_view layer = "mlp.", gate = "gate_proj", up = "up_proj", down = "down_proj";
};

const HuggingFaceFamily& family_of(HuggingFaceClass name);

// Throws UsageError that names the key, after `name`, if the class cannot represent the model.
void require_fitting(const config::RunConfig& config, HuggingFaceClass as, const std::string& name);

// The router's state that config.json holds. Its tensors are in the weights' files (convert_huggingface.cpp).
struct RouterNumbers {
  std::vector<double> thresholds;   // p in the controller's form: one value, or one per layer; else empty
  int64_t cut_steps = 0;            // expert_threshold: the steps in its moving average
  int64_t normalization_steps = 0;  // expert_normalization: the steps in its running means
};

// The text of config.json. `end_of_text` is the token's id, if there is one. The class must fit.
std::string huggingface_config(const config::RunConfig& config, const RouterNumbers& router,
                               std::optional<int64_t> end_of_text, HuggingFaceClass as);

struct ImportedConfig {
  HuggingFaceClass as;
  config::RunConfig config;  // sections without a counterpart in config.json have their defaults
  RouterNumbers router;
};

// Reads the config.json of a model of one of the classes. Call config::validate_values on the result.
//
// Throws:        UsageError that names the key that dtopp does not support (InvalidValue: a threshold);
//                DataError if the file is damaged
ImportedConfig read_huggingface_config(const fs::path& file);

}  // namespace dtopp::convert
