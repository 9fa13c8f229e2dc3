// Computes the feed-forward layer of a block: dense or Mixture-of-Experts, with or without shared experts.
//
//   y = FFN(x)                                                  dense
//   y = sum over selected experts of gate_e E_e(x) + s FFN(x)   experts; FFN only with shared experts
//   s = sigmoid(w x) with model.shared_gate, else 1
//
// Source:        paper, Eq. 1; DeepSeekMoE (arXiv 2401.06066) for shared experts, Qwen2-MoE for their gate
#pragma once

#include "dtopp/models/batch_losses.h"
#include "dtopp/models/model.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp::models {

// Runs a part of a block without storing its intermediate tensors, and runs it again in the backward pass
// (training.recompute; activation checkpointing).
//
//   forward pass    outputs = part(inputs)     autograd stores the inputs only
//   backward pass   part(inputs) again, then its own backward pass with the gradients of the outputs
//
// Gradients have the bits of a pass that stores everything: the same operations run in the same order, and a
// parameter gets its gradient once.

// A std::function because it lives until the backward pass.
using BlockPart = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;

// Returns part(inputs). With `recompute`, autograd stores the inputs only.
//
// Preconditions: `part` owns or shares all that it reads, and computes the same bits when it runs again. It
//                reads parameters directly, and other tensors with gradients through `inputs`. Its outputs
//                are new tensors with gradients.
std::vector<Tensor> run_part(bool recompute, const BlockPart& part, const std::vector<Tensor>& inputs);

struct FeedForwardWeights {
  moe::ExpertLayerWeights experts;         // if the model has experts
  Tensor dense_gate_up_GD, dense_down_DF;  // if the model is dense or has shared experts
  Tensor shared_gate_1D;                   // undefined without model.shared_gate
};

// Looks up the weights whose names begin with `prefix` ("model.layers.3.mlp.", see
// ParameterList::feed_forward).
FeedForwardWeights feed_forward_weights(const config::ModelConfig& model,
                                        const config::RoutingConfig& routing, const std::string& prefix,
                                        int64_t layer, const ParameterLookup& parameter);

// Returns y_TD, of x's type. `layer` counts from 0. A layer with a router appends its routing to `routed`.
Tensor feed_forward(const Tensor& x_TD, const FeedForwardWeights& weights, int64_t layer,
                    const moe::Routing& routing, std::vector<ops::RouteOutput>& routed);

}  // namespace dtopp::models
