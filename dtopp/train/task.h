// All the loop knows of what it trains: named parameters, the losses of a batch, and where batches come from.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtopp/config/run_config.h"
#include "dtopp/models/batch_losses.h"
#include "dtopp/models/parameters.h"

namespace dtopp {

// Finds a parameter's tensor by its name.
using ParameterLookup = std::function<at::Tensor(const std::string&)>;

// The losses of a batch.
using LossFunction = std::function<BatchLosses(const at::Tensor& batch, const RoutingInputs&)>;

struct TrainingTask {
  std::vector<ParameterSpec> parameters;
  int64_t num_routed_layers = 0;  // layers with a router
  int64_t tokens_per_sample = 0;
  std::string tokenizer_json;  // kept in checkpoints; empty when the data names none

  // Makes the loss function over the given parameters.
  std::function<LossFunction(const ParameterLookup&)> bind;
  // `count` samples from global position `position` of the training order.
  std::function<at::Tensor(uint64_t position, int64_t count)> training_batch;
  uint64_t validation_samples = 0;
  std::function<at::Tensor(uint64_t index, int64_t count)> validation_batch;
};

// What TrainingTask::bind is for a language model: over batches of token windows, with config's loss
// coefficients.
std::function<LossFunction(const ParameterLookup&)> bind_language_model_losses(const RunConfig& config);

// Opens the data and checks that model, tokenizer and data belong together. UsageError when the model does
// not fit the data, DataError when the data are missing or damaged.
TrainingTask language_model_task(const RunConfig& config);

}  // namespace dtopp
