// Converts checkpoints to files that llama.cpp loads (docs/how-to/hugging-face.md).
#pragma once

#include <filesystem>

#include "dtopp/checkpoint/checkpoint.h"

namespace dtopp::convert {

// Writes a GGUF file in fp32 with the weights and the tokenizer, if the checkpoint has one. llama.cpp has two
// architectures that fit Top-k models: olmoe (QK-norm over all heads, gates as they are) and qwen3moe
// (QK-norm for each head, renormalized gates). The file appears complete or not at all.
//
// Throws:        UsageError that names the key if neither fits the model, or if llama.cpp has no such
//                tokenizer
void convert_to_gguf(const checkpoint::Checkpoint& checkpoint, const std::filesystem::path& file);

}  // namespace dtopp::convert
