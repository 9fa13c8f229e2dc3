// A language model out of a checkpoint, for evaluation and generation: parameters only, fp32, with the
// checkpoint's p.
#pragma once

#include <filesystem>
#include <string>

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/config/run_config.h"
#include "dtopp/data/tokenizer/tokenizer.h"
#include "dtopp/models/language_model/language_model.h"

namespace dtopp {

struct InferenceModel {
  RunConfig config;
  LanguageModel model;
  RoutingInputs routing;  // p of each layer

  at::Device device() const { return model.embed_VD().device(); }
};

// Of a language model. CheckpointError where a tensor is missing or of another shape.
InferenceModel load_inference_model(const Checkpoint& checkpoint, const at::Device& device = at::kCPU);

// The checkpoint's tokenizer, or `other` (--tokenizer; may be empty) for a checkpoint without; its ids are
// ids of the model. UsageError where there is none, where `other` is not the one the checkpoint was trained
// with, or where it has more than `vocab_size` ids.
Tokenizer load_tokenizer(const Checkpoint& checkpoint, const std::filesystem::path& other,
                         int64_t vocab_size);

// Its size and what it was trained on: "9.9M parameters, of which a token uses 7.1M, after 4.19M tokens".
std::string describe_model(const RunConfig& config, int64_t tokens);

}  // namespace dtopp
