// Converts checkpoints to folders that transformers loads, and back, and to files that llama.cpp loads.
// Converts the 13 language tasks to files for lm-eval (docs/how-to/hugging-face.md).
#pragma once

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/convert/huggingface_config.h"

namespace dtopp::convert {

struct HuggingFaceOptions {
  HuggingFaceClass as = HuggingFaceClass::kDtopp;
  int64_t max_experts = 0;  // most experts per token; 0: routing.max_experts
};

// The most experts per token of a converted model, without a limit the number of its experts.
//
// Throws:        UsageError if the model cannot have the limit `max_experts`
int64_t exported_max_experts(const config::RunConfig& config, int64_t max_experts);

// Writes config.json, generation_config.json, the weights, the tokenizer's files if the checkpoint has a
// tokenizer, and the code of dtopp's model class. The folder appears complete or not at all.
//
// Throws:        UsageError if `folder` exists and is not empty, if the class cannot represent the model, or
//                if the model cannot have the limit of experts
void convert_to_huggingface(const checkpoint::Checkpoint& checkpoint, const fs::path& folder,
                            const HuggingFaceOptions& options = {});

// Writes a checkpoint of step 0 without optimizer state, for evaluate, generate and as the start of a run.
// `checkpoint` appears complete or not at all.
//
// Throws:        UsageError if `checkpoint` exists and is not empty, or if `folder` holds no model or one
//                that dtopp cannot train; DataError if a file is damaged
void convert_from_huggingface(const fs::path& folder, const fs::path& checkpoint);

// Writes a GGUF file in fp32 with the weights and the tokenizer, if the checkpoint has one. llama.cpp has two
// architectures that fit Top-k models: olmoe (QK-norm over all heads, gates as they are) and qwen3moe
// (QK-norm for each head, renormalized gates). The file appears complete or not at all.
//
// Throws:        UsageError that names the key if neither fits the model, or if llama.cpp has no such
//                tokenizer
void convert_to_gguf(const checkpoint::Checkpoint& checkpoint, const fs::path& file);

// Writes one YAML file per task (for MMLU per category), the prompts of all items as JSON Lines, and the code
// that judges answers. The YAML files name the prompt files by their absolute path in `folder`. `data` is the
// folder with the task files. `folder` appears complete or not at all.
//
// Throws:        UsageError if `folder` exists and is not empty; DataError like load_task
void convert_to_lm_eval(const fs::path& data, const fs::path& folder);

}  // namespace dtopp::convert
