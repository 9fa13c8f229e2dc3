// The output projection together with its loss (linear_cross_entropy) or with each target's log probability
// (token_log_probs). Logits are formed for some tokens at a time, never for all of them.
#pragma once

#include <tuple>

#include "dtopp/ops/core/torch.h"

namespace dtopp {

struct CrossEntropy {
  at::Tensor loss;  // f32 []: mean(nll + z_weight * lse^2) over targets that are not ignored; differentiable
  at::Tensor nll;   // f32 []: mean -log softmax(x W^T)[target]
  at::Tensor z;     // f32 []: mean logsumexp(x W^T)^2
};

// x_TD [T, D] and weight_VD [V, D] f32, bf16 or f64, of one type; targets_T int64 [T] in [0, V) or
// ignore_index (paper, LM loss of the appendix). Losses are f64 for f64 x. Differentiable in x and weight;
// nll and z are not. A mean over no targets is 0 with zero gradients.
//
// Throws c10::Error beginning "linear_cross_entropy:" for shapes, types or devices that do not fit and for a
// target out of range. On a CUDA device the host does not wait to see the targets: there, a target out of
// range prints a line and makes this launch and every later one fail.
CrossEntropy linear_cross_entropy(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                  const at::Tensor& targets_T, double z_weight = 0.0,
                                  int64_t ignore_index = -100);

// (log softmax(x W^T)[target] f32 [T], the likeliest id int64 [T]; of several the lowest). Arguments and
// errors as above, but without targets to ignore.
std::tuple<at::Tensor, at::Tensor> token_log_probs(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                                   const at::Tensor& targets_T);

}  // namespace dtopp
