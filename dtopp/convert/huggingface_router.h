// Converts a router's state between a checkpoint and a Hugging Face folder. Single numbers are in
// config.json. Tensors are buffers of each layer's router in the weights' files:
//
//   bias_LE of the checkpoint    model.layers.N.mlp.gate.bias_E          F64 [E]
//   cut_LE                       model.layers.N.mlp.gate.cut_E           F64 [E]
//   router_input_mean_LD         model.layers.N.mlp.gate.input_mean_D    F64 [D]
//   logit_square_LC              model.layers.N.mlp.gate.logit_square_C  F64 [C]
//   (method hash)                model.layers.N.mlp.gate.expert_VK       I32 [V, K]: the experts of each id
//
// State that only training needs is not converted: a new router has it.
#pragma once

#include <string>
#include <vector>

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/convert/huggingface_config.h"
#include "dtopp/convert/huggingface_tensors.h"
#include "dtopp/ops/core/named_tensors.h"

namespace dtopp::convert {

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

}  // namespace dtopp::convert
