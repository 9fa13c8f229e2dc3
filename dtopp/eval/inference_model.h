// A language model out of a checkpoint, for evaluation and generation: parameters only, fp32, with the
// checkpoint's p.
#pragma once

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/config/run_config.h"
#include "dtopp/models/language_model/language_model.h"

namespace dtopp {

struct InferenceModel {
  RunConfig config;
  LanguageModel model;
  RoutingInputs routing;  // p of each layer

  at::Device device() const { return model.embed_VD.device(); }
};

// CheckpointError where a tensor is missing or of another shape.
InferenceModel load_inference_model(const Checkpoint& checkpoint, const at::Device& device = at::kCPU);

}  // namespace dtopp
