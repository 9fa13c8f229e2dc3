// linear_cross_entropy and token_log_probs: the output projection with its loss, never holding tokens x
// vocabulary.
#pragma once

#include <tuple>

#include "dtopp/ops/torch.h"

namespace dtopp {

struct CrossEntropy {
  at::Tensor loss;  // f32 []: mean(nll + z_weight * lse^2) over targets that are not ignored; differentiable
  at::Tensor nll;   // f32 []: mean -log softmax(x W^T)[target]
  at::Tensor z;     // f32 []: mean logsumexp(x W^T)^2
};

// x_TD [T, D], weight_VD [V, D], targets_T int64 [T] in [0, V) or ignore_index (paper, LM loss of the
// appendix). Differentiable in x and weight; nll and z are not. A mean over no targets is 0 with zero
// gradients. A target out of range throws; on a CUDA device, where nothing is read on the host, it prints a
// line and fails the launch and every later one.
CrossEntropy linear_cross_entropy(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                  const at::Tensor& targets_T, double z_weight = 0.0,
                                  int64_t ignore_index = -100);

// (log softmax(x W^T)[target] f32 [T], the likeliest id int64 [T], lowest id on ties).
std::tuple<at::Tensor, at::Tensor> token_log_probs(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                                   const at::Tensor& targets_T);

}  // namespace dtopp
