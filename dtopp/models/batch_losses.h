// What the training loop knows of a model: the named losses of a batch.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtopp/moe/activation_statistics.h"
#include "dtopp/moe/expert_layer.h"

namespace dtopp {

struct LossWeights {
  double lm_z = 0, load_balance = 0, dynamic = 0, router_z = 0;
};

// What routing needs besides weights.
struct RoutingInputs {
  std::vector<at::Tensor> threshold;  // p of each layer, f64 [] on the device
  // With global batch statistics: the counts of the step's earlier micro-batches; otherwise null.
  const ActivationStatistics* earlier = nullptr;
};

struct BatchLosses {
  at::Tensor total;                                        // what is differentiated
  std::vector<std::pair<std::string, at::Tensor>> values;  // unweighted, detached, f32 []: "lm_loss", …
  ActivationStatistics activations;                        // no layers for a dense model
};

}  // namespace dtopp
