// Describes a model as one record, independent of its type.
//
// A model type is one or two files beside this one with a make_ function, and one row of the table in
// make_model.cpp.
#pragma once

#include <functional>

#include "dtopp/models/costs.h"
#include "dtopp/parameters/parameters.h"

namespace at {
class Tensor;
}

namespace dtopp::moe {
struct Routing;
}

namespace dtopp::models {

struct Batch;
struct BatchLosses;
struct TrainingData;

// Finds the tensor of a parameter by name. Experts are those that moe::Routing::experts computes with: all,
// or this rank's EP shard.
using ParameterLookup = std::function<at::Tensor(const std::string&)>;

// A lookup of tensors that were all looked up now.
ParameterLookup looked_up(const std::vector<parameters::ParameterSpec>& specs,
                          const ParameterLookup& parameter);

using LossFunction = std::function<BatchLosses(const Batch&, const moe::Routing&)>;

struct Model {
  std::vector<parameters::ParameterSpec> parameters;  // in the order of the forward pass
  int64_t num_routed_layers = 0;                      // layers with a router
  int64_t tokens_per_sample = 0;
  std::string validation_loss;  // the name of the loss that validation reports
  double ema_decay = 0;         // decay of the parameters' EMA; 0: no EMA
  // Groups of held-out samples ("t0", …). Validation also reports their losses and active experts. Validation
  // batches then hold "group", int64 [B], an index into this list, and their losses include SampleLosses.
  std::vector<std::string> validation_groups;
  // Builds the loss function over the given parameters. The result keeps the lookup. Each forward pass looks
  // up every parameter when it is used, in the list's order.
  std::function<LossFunction(const ParameterLookup&)> bind;
};

}  // namespace dtopp::models
