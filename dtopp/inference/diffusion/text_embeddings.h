// Embeddings of texts to make pictures of.
#pragma once

#include <filesystem>

#include "dtopp/config/model_config.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp {

// "text" of a safetensors file, F32, F16 or BF16 [N, L, S] with L up to model.text_length: f32
// [N, text_length, S], zeros after each text's L. DataError where the file is damaged, has no such tensor or
// numbers that are not finite; UsageError where it does not fit the model.
at::Tensor read_text_embeddings(const std::filesystem::path& path, const ModelConfig& model);

}  // namespace dtopp
