// Solves for the thresholds at which a model uses a given number of experts per token.
#pragma once

#include "dtopp/config/run_config.h"
#include "dtopp/models/batch_losses.h"
#include "dtopp/models/model.h"
#include "dtopp/moe/solving.h"

namespace dtopp::models {

// The number of tokens to solve on. The mean is then accurate to a hundredth of an expert.
inline constexpr int64_t kSolveTokens = 16384;

// Runs a forward pass over the same tokens at each call. Returns the mean number of experts per token and
// layer. With `ranks`, the number of their rank 0 counts.
using MeanExperts = c10::function_ref<double(const moe::Routing&)>;

// Solves for p: one value for all layers, or one per layer if routing.scope is layer.
//
// `targets` are numbers of experts from 1 to all: one for all layers, or one per layer. The result reaches
// them within a relative error of 1e-4, or as closely as p with an error of 1e-12 can. `forward` is called
// with `routing` and changing routers. The result's router has the solved thresholds.
//
// Preconditions: the routing method has a threshold
// Collective:    if `routing.ranks` is set, every rank, with the same result
moe::Routing solve_thresholds(const config::RunConfig& config, const std::vector<double>& targets,
                              const at::Device& device, MeanExperts forward,
                              const moe::Routing& routing = {});

// Solves on the first held-out samples: kSolveTokens tokens, but at least one sample. Every rank reads the
// same samples.
//
// Preconditions: as above; there are held-out samples
// Collective:    as above
moe::Routing solve_on_validation(const Model& model, const config::RunConfig& config,
                                 const std::vector<double>& targets, const at::Device& device,
                                 const LossFunction& losses, const TrainingData& data,
                                 const moe::Routing& routing = {});

}  // namespace dtopp::models
