// A model as everything above this room knows it: one record. A model type is a folder beside this file that
// makes one, and a line of the table in model.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtopp/config/run_config.h"
#include "dtopp/data/files/verified_files.h"
#include "dtopp/models/costs.h"
#include "dtopp/parameters/parameters.h"

namespace at {
class Tensor;
}

namespace dtopp {

struct Batch;
struct BatchLosses;
struct RoutingInputs;
struct TrainingData;

// Finds a parameter's tensor by its name.
using ParameterLookup = std::function<at::Tensor(const std::string&)>;

// The losses of a batch.
using LossFunction = std::function<BatchLosses(const Batch&, const RoutingInputs&)>;

struct Model {
  std::vector<ParameterSpec> parameters;  // in the order of a forward pass
  int64_t num_routed_layers = 0;          // layers with a router
  int64_t tokens_per_sample = 0;
  std::string validation_loss;  // which of its losses a validation reports
  double average_decay = 0;     // of the moving average of its parameters that is kept beside them; 0: none
  // Groups of held-out samples whose losses and active experts a validation reports too ("t0", …): its
  // batches then hold "group", int64 [B], an index into these, and their losses those of the samples.
  std::vector<std::string> validation_groups;
  // Makes the loss function over the given parameters, each looked up when it is used, in the list's order.
  std::function<LossFunction(const ParameterLookup&)> bind;
  std::function<StepCosts(const CostInputs&)> costs;
  // Opens what config.data names and checks that it belongs to the model. UsageError where it does not,
  // DataError where it is missing or damaged.
  std::function<TrainingData(Verify)> open_data;
};

}  // namespace dtopp
