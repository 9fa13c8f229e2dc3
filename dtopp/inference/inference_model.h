// Loads a language model for evaluation and generation: its parameters and the router.
#pragma once

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/config/run_config.h"
#include "dtopp/data/text/tokenizer.h"
#include "dtopp/models/language_model.h"
#include "dtopp/models/model.h"

namespace dtopp::inference {

// kRaw: the parameters that the optimizer updates. kEma: their exponential moving average (EMA).
enum class ParameterKind { kRaw, kEma };

// Copies the tensors of all `specs` to the device in `type`, those that training keeps in fp32 as fp32.
// Throws CheckpointError if one is missing or has another shape.
models::ParameterLookup load_parameters(const checkpoint::Checkpoint& checkpoint, ParameterKind kind,
                                        const std::vector<parameters::ParameterSpec>& specs,
                                        const at::Device& device, at::ScalarType type = at::kFloat);

// Returns the router with the state of the checkpoint. A dense model has none.
moe::Routing load_routing(const checkpoint::Checkpoint& checkpoint, const config::RunConfig& config,
                          const at::Device& device);

struct InferenceModel {
  config::RunConfig config;
  models::LanguageModel model;
  moe::Routing routing;  // without a router for a dense model

  at::Device device() const { return model.embed_VD().device(); }
};

// Loads the checkpoint of a language model, to compute in `type`, fp32 or bf16. Throws CheckpointError if a
// tensor is missing or has another shape, or if tokens attend only within their document and the id that ends
// one is unknown.
InferenceModel load_inference_model(const checkpoint::Checkpoint& checkpoint,
                                    const at::Device& device = at::kCPU, at::ScalarType type = at::kFloat);

// Loads the checkpoint's tokenizer, or `other` (--tokenizer; may be empty) if the checkpoint has none.
//
// Throws: UsageError if there is no tokenizer, if `other` differs from the checkpoint's tokenizer, or if the
//         tokenizer has more than `vocab_size` ids
data::Tokenizer load_tokenizer(const checkpoint::Checkpoint& checkpoint, const fs::path& other,
                               int64_t vocab_size);

// Describes the size and training of a model: "9.9M parameters (7.1M active per token), after 4.19M tokens".
std::string describe_model(const config::RunConfig& config, int64_t tokens);

}  // namespace dtopp::inference
