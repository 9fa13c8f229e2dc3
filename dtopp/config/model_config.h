// Defines the `model` section: the type of model, the shape of the transformer, and the fields of each type.
#pragma once

#include <array>

#include "dtopp/config/config_tree.h"

namespace dtopp::config {

enum class NormType { kLayer, kRms };

constexpr auto enum_names(NormType) { return std::to_array<std::string_view>({"layer", "rms"}); }

enum class Position { kRotary, kSincos };         // position encoding of image patches
enum class Objective { kFlow, kDdpm };            // what the model predicts
enum class Timesteps { kLogitNormal, kUniform };  // distribution of t

constexpr auto enum_names(Position) { return std::to_array<std::string_view>({"rotary", "sincos"}); }
constexpr auto enum_names(Objective) { return std::to_array<std::string_view>({"flow", "ddpm"}); }
constexpr auto enum_names(Timesteps) { return std::to_array<std::string_view>({"logit_normal", "uniform"}); }

struct DiffusionConfig {
  Objective objective = Objective::kFlow;
  Timesteps timesteps = Timesteps::kLogitNormal;
  bool flip = true;                     // mirror half of the training samples left to right
  double condition_dropout = 0.1;       // share of training samples without class and text
  double ema_decay = 0.9999;            // of the parameters' moving average; 0: none
  int64_t samples_every = 1000;         // steps between grids of samples; 0: none
  std::vector<int64_t> sample_classes;  // empty: the first eight classes
};

void visit_fields(SectionOf<DiffusionConfig> auto& config, auto&& field) {
  field("objective", config.objective);
  field("timesteps", config.timesteps);
  field("flip", config.flip);
  field("condition_dropout", config.condition_dropout);
  field("ema_decay", config.ema_decay);
  field("samples_every", config.samples_every);
  field("sample_classes", config.sample_classes);
}

// Throws UsageError that names the key. `num_classes` is the model's.
void validate(const DiffusionConfig& config, int64_t num_classes);

enum class ModelType { kLanguageModel, kDiffusionTransformer };

// The norm of queries and keys before positions: none, over all heads together, or over each head.
enum class QkNorm { kNone, kWhole, kHead };
enum class ZeroKind { kZero, kCopy };  // what a zero expert returns: 0, or its input

constexpr auto enum_names(QkNorm) { return std::to_array<std::string_view>({"none", "whole", "head"}); }
constexpr auto enum_names(ZeroKind) { return std::to_array<std::string_view>({"zero", "copy"}); }
constexpr auto enum_names(ModelType) {
  return std::to_array<std::string_view>({"language_model", "diffusion_transformer"});
}

struct ModelConfig {
  ModelType type = ModelType::kLanguageModel;
  // Sizes have no defaults: 0 means that the key is missing.
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t chosen_kv_heads = 0;   // 0: num_heads
  int64_t chosen_head_size = 0;  // 0: hidden_size / num_heads
  QkNorm qk_norm = QkNorm::kWhole;
  int64_t ffn_hidden_size = 0;  // per expert; of the whole FFN if num_experts is 1
  int64_t num_experts = 0;      // 1: dense
  int64_t zero_experts = 0;     // further columns of the router; they compute nothing
  ZeroKind zero_kind = ZeroKind::kZero;
  int64_t shared_experts = 0;  // every token passes one FFN of this many times ffn_hidden_size
  bool shared_gate = false;    // times sigmoid(w x)
  double init_std = 0.02;
  bool scale_residual_init = false;  // divide the std of o_proj and down_proj by sqrt(2 num_layers)

  // Language models only:
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

  // Diffusion transformers only:
  int64_t image_size = 0;  // rows, and columns, of an image or its latent
  int64_t channels = 0;
  int64_t patch_size = 0;
  int64_t num_classes = 0;  // 0: no class conditioning
  int64_t text_size = 0;    // size of a text embedding; 0: no text conditioning
  int64_t text_length = 0;  // embeddings per text
  Position position = Position::kRotary;

  int64_t grid_size() const { return image_size / patch_size; }  // patches per row
  int64_t image_tokens() const { return grid_size() * grid_size(); }
  int64_t patch_values() const { return channels * patch_size * patch_size; }
  bool is_dense() const { return num_experts == 1; }
  int64_t router_columns() const { return num_experts + zero_experts; }
  int64_t shared_ffn_hidden_size() const { return shared_experts * ffn_hidden_size; }
  int64_t num_kv_heads() const { return chosen_kv_heads > 0 ? chosen_kv_heads : num_heads; }
  int64_t head_size() const { return chosen_head_size > 0 ? chosen_head_size : hidden_size / num_heads; }
  // Numbers that the norm of queries, and that of keys, covers.
  int64_t q_norm_size() const { return qk_norm == QkNorm::kHead ? head_size() : num_heads * head_size(); }
  int64_t k_norm_size() const {
    return qk_norm == QkNorm::kHead ? head_size() : num_kv_heads() * head_size();
  }
  // Tokens per sample: per sequence of a language model; per image with its text.
  int64_t tokens_per_sample() const {
    return type == ModelType::kLanguageModel ? sequence_length : text_length + image_tokens();
  }
};

void visit_fields(SectionOf<ModelConfig> auto& config, auto&& field) {
  field("type", config.type);
  field("hidden_size", config.hidden_size);
  field("num_layers", config.num_layers);
  field("num_heads", config.num_heads);
  field("num_kv_heads", config.chosen_kv_heads);
  field("head_size", config.chosen_head_size);
  field("qk_norm", config.qk_norm);
  field("ffn_hidden_size", config.ffn_hidden_size);
  field("num_experts", config.num_experts);
  field("zero_experts", config.zero_experts);
  field("zero_kind", config.zero_kind);
  field("shared_experts", config.shared_experts);
  field("shared_gate", config.shared_gate);
  // Keys of the other model types are unknown keys.
  if (config.type == ModelType::kLanguageModel) {
    field("vocab_size", config.vocab_size);
    field("sequence_length", config.sequence_length);
    field("tie_embeddings", config.tie_embeddings);
    field("qkv_bias", config.qkv_bias);
    field("norm", config.norm);
    field("norm_eps", config.norm_eps);
    field("rope_base", config.rope_base);
    field("attention_window", config.attention_window);
    field("attend_across_documents", config.attend_across_documents);
  } else {
    field("image_size", config.image_size);
    field("channels", config.channels);
    field("patch_size", config.patch_size);
    field("num_classes", config.num_classes);
    field("text_size", config.text_size);
    field("text_length", config.text_length);
    field("position", config.position);
  }
  field("init_std", config.init_std);
  field("scale_residual_init", config.scale_residual_init);
}

// A section whose fields depend on the type of model.
template <class Section>
struct TypedSection {
  Section& values;
  ModelType type;
};
template <class Section>
TypedSection(Section&, ModelType) -> TypedSection<Section>;  // clang 14 does not deduce it

// Throws:        UsageError that names the key, if a size is missing, below 1 or does not divide another one,
//                or if rotary positions cannot divide the head size by 2 (language models) or by 4 (images)
void validate(const ModelConfig& config);

}  // namespace dtopp::config
