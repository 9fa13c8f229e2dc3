// Reads the text embeddings that condition sampled pictures.
#pragma once

#include <filesystem>

#include "dtopp/config/model_config.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp::inference {

// Reads the tensor "text" of a safetensors file, zero-padded to the model's text length.
//
// Shapes: "text" F32|F16|BF16 [N, L, S], L <= model.text_length -> f32 [N, text_length, S]
// Throws: DataError if the file is damaged, has no such tensor or holds numbers that are not finite;
//         UsageError if the tensor does not fit the model
at::Tensor read_text_embeddings(const std::filesystem::path& path, const config::ModelConfig& model);

}  // namespace dtopp::inference
