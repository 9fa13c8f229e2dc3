// config.json of transformers: of dtopp's own model class, and of OLMoE's.
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

namespace dtopp {

// What a language model is there: dtopp's class, whose code lies beside the weights, or a class that
// transformers, and others who read OLMoE, have themselves.
enum class HuggingFaceClass { kDtopp, kOlmoe };
constexpr auto enum_names(HuggingFaceClass) {
  return std::array<std::pair<HuggingFaceClass, std::string_view>, 2>{
      {{HuggingFaceClass::kDtopp, "dtopp"}, {HuggingFaceClass::kOlmoe, "olmoe"}}};
}

// UsageError naming the key where OLMoE cannot say what the model computes.
void require_olmoe(const RunConfig& config);

// The text of config.json. thresholds: p as the controller keeps it, one or one a layer. end_of_text: the
// token's id, where there is one.
std::string huggingface_config(const RunConfig& config, const std::vector<double>& thresholds,
                               std::optional<int64_t> end_of_text, HuggingFaceClass as);

struct ImportedConfig {
  RunConfig config;                // sections that a config.json says nothing of have their defaults
  std::vector<double> thresholds;  // p as the controller keeps it; empty for a dense model
};

// Of a model of dtopp's class or OLMoE's. UsageError naming the key that does not fit; DataError where the
// file is damaged.
ImportedConfig read_huggingface_config(const std::filesystem::path& file);

}  // namespace dtopp
