// Defines the diffusion transformer's part of the `model` section, and the `diffusion` section.
// docs/reference/configuration.md explains each key.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "dtopp/config/section_of.h"

namespace dtopp::config {

enum class Position { kRotary, kSincos };         // position encoding of image patches
enum class Objective { kFlow, kDdpm };            // what the model predicts
enum class Timesteps { kLogitNormal, kUniform };  // distribution of t

constexpr auto enum_names(Position) {
  return std::array<std::pair<Position, std::string_view>, 2>{
      {{Position::kRotary, "rotary"}, {Position::kSincos, "sincos"}}};
}
constexpr auto enum_names(Objective) {
  return std::array<std::pair<Objective, std::string_view>, 2>{
      {{Objective::kFlow, "flow"}, {Objective::kDdpm, "ddpm"}}};
}
constexpr auto enum_names(Timesteps) {
  return std::array<std::pair<Timesteps, std::string_view>, 2>{
      {{Timesteps::kLogitNormal, "logit_normal"}, {Timesteps::kUniform, "uniform"}}};
}

struct DiffusionTransformerConfig {
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
};

struct DiffusionConfig {
  Objective objective = Objective::kFlow;
  Timesteps timesteps = Timesteps::kLogitNormal;
  bool flip = true;                     // mirror half of the training samples left to right
  double condition_dropout = 0.1;       // share of training samples without class and text
  double ema_decay = 0.9999;            // of the parameters' moving average; 0: none
  int64_t samples_every = 1000;         // steps between grids of samples; 0: none
  std::vector<int64_t> sample_classes;  // empty: the first eight classes
};

void visit_fields(SectionOf<DiffusionTransformerConfig> auto& config, auto&& field) {
  field("image_size", config.image_size);
  field("channels", config.channels);
  field("patch_size", config.patch_size);
  field("num_classes", config.num_classes);
  field("text_size", config.text_size);
  field("text_length", config.text_length);
  field("position", config.position);
}

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

}  // namespace dtopp::config
