// Converts checkpoints to folders that transformers loads, and back (docs/how-to/hugging-face.md).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/convert/huggingface_config.h"
#include "dtopp/convert/huggingface_tensors.h"
#include "dtopp/ops/core/named_tensors.h"

namespace dtopp::convert {

// Converts a router's state between a checkpoint and a Hugging Face folder. Single numbers are in
// config.json. Tensors are buffers of each layer's router in the weights' files:
//
//   bias_LE of the checkpoint    model.layers.N.mlp.gate.bias_E          F64 [E]
//   cut_LE                       model.layers.N.mlp.gate.cut_E           F64 [E]
//   router_input_mean_LD         model.layers.N.mlp.gate.input_mean_D    F64 [D]
//   logit_square_LC              model.layers.N.mlp.gate.logit_square_C  F64 [C]
//   (method hash)                model.layers.N.mlp.gate.expert_VK       I32 [V, K]: the experts of each id
//
// Thresholds are router_thresholds in config.json, one per layer. The router's weight and scale are
// parameters (huggingface_tensors.h). State that only training needs is not converted: a new router has it.

struct HuggingFaceRouter {
  RouterNumbers numbers;
  ops::NamedTensors buffers;  // on the CPU
};

// The router of a checkpoint; empty for a dense model. `config` holds the experts of the checkpoint's step.
HuggingFaceRouter to_huggingface_router(const checkpoint::Checkpoint& checkpoint,
                                        const config::RunConfig& config);

// The state of a checkpoint's router; empty for a dense model.
//
// Throws:        DataError that names a buffer that is missing or has another shape or dtype; UsageError if
//                the router is hash and selects other experts than dtopp's
ops::NamedTensors from_huggingface_router(const ImportedConfig& imported, HuggingFaceTensors& tensors);

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
void convert_to_huggingface(const checkpoint::Checkpoint& checkpoint, const std::filesystem::path& folder,
                            const HuggingFaceOptions& options = {});

// Writes a checkpoint of step 0 without optimizer state, for evaluate, generate and as the start of a run.
// `checkpoint` appears complete or not at all.
//
// Throws:        UsageError if `checkpoint` exists and is not empty, or if `folder` holds no model or one
//                that dtopp cannot train; DataError if a file is damaged
void convert_from_huggingface(const std::filesystem::path& folder, const std::filesystem::path& checkpoint);

}  // namespace dtopp::convert
