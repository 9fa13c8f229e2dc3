// Thresholds at which a model chooses a given number of experts.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dtopp/config/run_config.h"
#include "dtopp/models/batch_losses.h"
#include "dtopp/models/model.h"

namespace dtopp {

// As many tokens as thresholds are solved on: enough for a mean within a hundredth of an expert.
inline constexpr int64_t kSolveTokens = 16384;

// A forward pass over the tokens to solve on: experts a token chooses, the mean over layers.
using MeanExperts = std::function<double(const RoutingInputs&)>;

// p, as the controller keeps it (one for all layers, or one a layer where routing.scope is layer), at which
// `forward` gives `targets` experts, between 1 and all: one number for all layers, or one a layer; to 1e-4 of
// them, or as near as p to 1e-12 comes. `forward` gets `inputs` with other thresholds. For
// methods that have a threshold. With `inputs.agree` all ranks call it and get the same.
RoutingInputs solve_thresholds(const RoutingConfig& routing, int64_t num_routed_layers,
                               const std::vector<double>& targets, const at::Device& device,
                               const MeanExperts& forward, const RoutingInputs& inputs = {});

// The same on held-out samples: the first of them, kSolveTokens or one sample.
RoutingInputs solve_on_validation(const Model& model, const RoutingConfig& routing,
                                  const std::vector<double>& targets, const at::Device& device,
                                  const LossFunction& losses, const TrainingData& data,
                                  const RoutingInputs& inputs = {});

}  // namespace dtopp
