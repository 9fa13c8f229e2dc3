// Checkpoints to folders that transformers loads, and back (docs/huggingface.md).
#pragma once

#include <filesystem>

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/convert/huggingface_config.h"

namespace dtopp {

// Writes config.json, generation_config.json, the weights, the tokenizer's files where the checkpoint has
// one, and the code of dtopp's class. The folder appears complete or not at all. UsageError where it is there
// and not empty, or the class cannot say what the model computes.
void convert_to_huggingface(const Checkpoint& checkpoint, const std::filesystem::path& folder,
                            HuggingFaceClass as);

// Writes a checkpoint of step 0 without an optimiser's state: for evaluate, generate, and as a start.
// `checkpoint` appears complete or not at all. UsageError where it is there and not empty, `folder` holds no
// model, or one that dtopp cannot train; DataError for damage.
void convert_from_huggingface(const std::filesystem::path& folder, const std::filesystem::path& checkpoint);

}  // namespace dtopp
