#include "dtopp/config/model_config.h"

#include "dtopp/config/config.h"

namespace dtopp::config {
namespace {

// Far above any real model, and small enough that the product of two of them does not overflow.
constexpr int64_t kLargest = int64_t{1} << 31;
constexpr int64_t kMostExperts = 1 << 16;

void require_size(const char* key, int64_t value, int64_t largest = kLargest) {
  if (value == 0) throw MissingValue(key, "is missing; a model has no default size");
  if (value < 1 || value > largest) throw InvalidValue(key, "must lie in [1, ", largest, "], is ", value);
}

void validate_language_model(const ModelConfig& config) {
  require_size("model.vocab_size", config.vocab_size, kLargest - 1);  // ids are int32
  require_size("model.sequence_length", config.sequence_length, 1 << 24);
  if (!(config.norm_eps > 0)) throw InvalidValue("model.norm_eps", "must be above 0");
  if (!(config.rope_base > 0)) throw InvalidValue("model.rope_base", "must be above 0");
  if (config.attention_window < 0) throw InvalidValue("model.attention_window", "must be at least 0");
}

void validate_diffusion_transformer(const ModelConfig& config) {
  require_size("model.image_size", config.image_size, 1 << 12);
  require_size("model.channels", config.channels, 1 << 12);
  require_size("model.patch_size", config.patch_size, config.image_size);
  if (config.image_size % config.patch_size != 0)
    throw InvalidValue("model.patch_size", config.patch_size, " does not divide image_size ",
                       config.image_size);
  require_between("model.num_classes", 0, kLargest - 1, config.num_classes);
  if (config.text_size == 0 && config.text_length == 0) return;
  require_size("model.text_size", config.text_size, 1 << 20);
  require_size("model.text_length", config.text_length, 1 << 16);
}

// Checks the sizes that the position encoding divides: the head size by 2 (RoPE), for images by 4 (rows and
// columns); with sincos positions the hidden size by 4.
void require_parts(const ModelConfig& config) {
  const bool images = config.type == ModelType::kDiffusionTransformer;
  const std::string hidden = "hidden_size " + std::to_string(config.hidden_size);
  if (images && config.position == Position::kSincos) {
    if (config.hidden_size % 4 != 0)
      throw InvalidValue("model.hidden_size", hidden, " is not a multiple of 4; sincos positions need one");
    return;
  }
  const char* key = config.chosen_head_size > 0 ? "model.head_size" : "model.num_heads";
  const std::string heads = config.chosen_head_size > 0
                                ? ""
                                : hidden + " over " + std::to_string(config.num_heads) + " heads gives ";
  if (config.head_size() % 2 != 0)
    throw InvalidValue(key, heads, "an odd head size; rotary positions need an even one");
  if (images && config.head_size() % 4 != 0)
    throw InvalidValue(key, heads, "a head size of ", config.head_size(),
                       "; rotary positions of images need a multiple of 4");
}

}  // namespace

void validate(const ModelConfig& config) {
  require_size("model.hidden_size", config.hidden_size, 1 << 20);
  require_size("model.num_layers", config.num_layers, 1 << 14);
  require_size("model.num_heads", config.num_heads);
  require_size("model.ffn_hidden_size", config.ffn_hidden_size, 1 << 24);
  require_size("model.num_experts", config.num_experts, kMostExperts);
  require_between("model.zero_experts", 0, kMostExperts, config.zero_experts);
  if (config.zero_experts > 0 && config.is_dense())
    throw InvalidValue("model.zero_experts", "a dense model has no router; set it to 0");
  if (config.zero_experts == 0 && config.zero_kind != ZeroKind::kZero)
    throw InvalidValue("model.zero_kind", "copy needs model.zero_experts");
  require_between("model.shared_experts", 0, kMostExperts, config.shared_experts);
  if (config.shared_experts > 0 && config.is_dense())
    throw InvalidValue("model.shared_experts", "a dense model has no experts to share with; set it to 0");
  if (config.shared_gate && config.shared_experts == 0)
    throw InvalidValue("model.shared_gate", "needs model.shared_experts; set it to false");
  if (config.type == ModelType::kLanguageModel)
    validate_language_model(config);
  else
    validate_diffusion_transformer(config);
  if (config.chosen_kv_heads < 0 || config.num_heads % config.num_kv_heads() != 0)
    throw InvalidValue("model.num_kv_heads", config.chosen_kv_heads, " does not divide num_heads ",
                       config.num_heads);
  require_between("model.head_size", 0, 1 << 16, config.chosen_head_size);
  if (config.chosen_head_size == 0 && config.hidden_size % config.num_heads != 0)
    throw InvalidValue("model.num_heads", config.num_heads, " heads do not divide hidden_size ",
                       config.hidden_size);
  require_parts(config);
  if (!(config.init_std > 0)) throw InvalidValue("model.init_std", "must be above 0");
}

void validate(const DiffusionConfig& config, int64_t num_classes) {
  require_share("diffusion.condition_dropout", config.condition_dropout);
  require_share("diffusion.ema_decay", config.ema_decay);
  if (config.samples_every < 0) throw InvalidValue("diffusion.samples_every", "must be at least 0");
  for (const int64_t one : config.sample_classes) {
    if (one < 0 || one >= num_classes)
      throw InvalidValue("diffusion.sample_classes", one, " is not one of the model's ", num_classes,
                         " classes");
  }
}

}  // namespace dtopp::config
