// Writes and reads config.json of transformers, for dtopp's own model class and for OLMoE's.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtopp/config/run_config.h"

namespace dtopp::convert {

// The class of a converted model: dtopp's own, whose code is stored beside the weights, or OLMoE's, which
// transformers and other programs include.
enum class HuggingFaceClass { kDtopp, kOlmoe };
constexpr auto enum_names(HuggingFaceClass) {
  return std::array<std::pair<HuggingFaceClass, std::string_view>, 2>{
      {{HuggingFaceClass::kDtopp, "dtopp"}, {HuggingFaceClass::kOlmoe, "olmoe"}}};
}

// Throws UsageError that names the key if OLMoE's class cannot represent the model.
void require_olmoe(const config::RunConfig& config);

// The router's state that config.json holds. Its tensors are in the weights' files (huggingface_router.h).
struct RouterNumbers {
  std::vector<double> thresholds;  // p in the controller's form: one value, or one per layer; else empty
  int64_t cut_steps = 0;           // expert_threshold: the steps in its moving average
};

// The text of config.json. `end_of_text` is the token's id, if there is one.
//
// Throws:        UsageError if model.attention_window is not 0
std::string huggingface_config(const config::RunConfig& config, const RouterNumbers& router,
                               std::optional<int64_t> end_of_text, HuggingFaceClass as);

struct ImportedConfig {
  config::RunConfig config;  // sections without a counterpart in config.json have their defaults
  RouterNumbers router;
};

// Reads the config.json of a model of dtopp's class or OLMoE's. Call config::validate_values on the result.
//
// Throws:        UsageError that names the key that dtopp does not support (InvalidValue: a threshold);
//                DataError if the file is damaged
ImportedConfig read_huggingface_config(const std::filesystem::path& file);

}  // namespace dtopp::convert
