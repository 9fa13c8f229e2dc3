// Sizes for tests of configurations: those of the paper's main model, and of a diffusion transformer.
#pragma once

#include <string>

#include "dtopp/config/run_config.h"

namespace dtopp::config {

inline const std::string kModelYaml =
    "model: {hidden_size: 2048, num_layers: 16, num_heads: 16, ffn_hidden_size: 1024, num_experts: 64, "
    "vocab_size: 50432, sequence_length: 2048}\n";
inline const std::string kImageModelYaml =
    "model: {type: diffusion_transformer, hidden_size: 2048, num_layers: 16, num_heads: 16, ffn_hidden_size: "
    "1024, num_experts: 64, image_size: 32, channels: 4, patch_size: 2, num_classes: 1000}\n";

inline RunConfig sized_config() { return parse_run_config(kModelYaml, "sizes"); }

}  // namespace dtopp::config
