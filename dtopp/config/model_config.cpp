#include "dtopp/config/model_config.h"

#include <string>

#include "dtopp/config/config.h"

namespace dtopp {
namespace {

// Far above any model, low enough that no product of two of them overflows.
constexpr int64_t kLargest = int64_t{1} << 31;

void require_size(const char* key, int64_t value, int64_t largest = kLargest) {
  if (value < 1 || value > largest)
    throw InvalidValue(key, "must lie in [1, " + std::to_string(largest) + "], is " + std::to_string(value));
}

void validate(const LanguageModelConfig& config) {
  require_size("model.vocab_size", config.vocab_size, kLargest - 1);  // ids are int32
  require_size("model.sequence_length", config.sequence_length, 1 << 24);
}

}  // namespace

void validate(const ModelConfig& config) {
  require_size("model.hidden_size", config.hidden_size, 1 << 20);
  require_size("model.num_layers", config.num_layers, 1 << 14);
  require_size("model.num_heads", config.num_heads);
  require_size("model.ffn_hidden_size", config.ffn_hidden_size, 1 << 24);
  require_size("model.num_experts", config.num_experts, 1 << 16);
  switch (config.type) {
    case ModelType::kLanguageModel:
      validate(language_model_part(config));
      break;
  }
  const std::string hidden = "hidden_size " + std::to_string(config.hidden_size);
  if (config.hidden_size % config.num_heads != 0)
    throw InvalidValue("model.num_heads",
                       std::to_string(config.num_heads) + " heads do not divide " + hidden);
  if (config.head_size() % 2 != 0)
    throw InvalidValue("model.num_heads",
                       hidden + " over " + std::to_string(config.num_heads) +
                           " heads gives an odd head size; rotary positions need an even one");
  if (!(config.init_std > 0)) throw InvalidValue("model.init_std", "must be above 0");
}

}  // namespace dtopp
