// Runs a part of a block without storing its intermediate tensors, and runs it again in the backward pass
// (training.recompute; activation checkpointing).
//
//   forward pass    outputs = part(inputs)     autograd stores the inputs only
//   backward pass   part(inputs) again, then its own backward pass with the gradients of the outputs
//
// Gradients have the bits of a pass that stores everything: the same operations run in the same order, and a
// parameter gets its gradient once.
#pragma once

#include <functional>
#include <vector>

#include "dtopp/ops/core/torch.h"

namespace dtopp::models {

// A std::function because it lives until the backward pass.
using BlockPart = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// Returns part(inputs). With `recompute`, autograd stores the inputs only.
//
// Preconditions: `part` owns or shares all that it reads, and computes the same bits when it runs again. It
//                reads parameters directly, and other tensors with gradients through `inputs`. Its outputs
//                are new tensors with gradients.
std::vector<at::Tensor> run_part(bool recompute, const BlockPart& part,
                                 const std::vector<at::Tensor>& inputs);

}  // namespace dtopp::models
