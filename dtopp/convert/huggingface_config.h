// Writes and reads config.json of transformers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/config/run_config.h"
#include "dtopp/convert/huggingface_family.h"

namespace dtopp::convert {

// Throws UsageError that names the key, after `name`, if the class cannot represent the model.
void require_fitting(const config::RunConfig& config, HuggingFaceClass as, const std::string& name);

// The router's state that config.json holds. Its tensors are in the weights' files (huggingface_router.h).
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
ImportedConfig read_huggingface_config(const std::filesystem::path& file);

}  // namespace dtopp::convert
