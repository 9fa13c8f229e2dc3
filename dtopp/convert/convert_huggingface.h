// Converts checkpoints to folders that transformers loads, and back (docs/how-to/hugging-face.md).
#pragma once

#include <filesystem>

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/convert/huggingface_config.h"

namespace dtopp::convert {

// Writes config.json, generation_config.json, the weights, the tokenizer's files if the checkpoint has a
// tokenizer, and the code of dtopp's model class. The folder appears complete or not at all.
//
// Throws:        UsageError if `folder` exists and is not empty, or if the class cannot represent the model
void convert_to_huggingface(const checkpoint::Checkpoint& checkpoint, const std::filesystem::path& folder,
                            HuggingFaceClass as);

// Writes a checkpoint of step 0 without optimizer state, for evaluate, generate and as the start of a run.
// `checkpoint` appears complete or not at all.
//
// Throws:        UsageError if `checkpoint` exists and is not empty, or if `folder` holds no model or one
//                that dtopp cannot train; DataError if a file is damaged
void convert_from_huggingface(const std::filesystem::path& folder, const std::filesystem::path& checkpoint);

}  // namespace dtopp::convert
