// The output projection combined with its loss (linear_cross_entropy) or with each target's log probability
// (token_log_probs). Logits exist for a chunk of tokens at a time, never for all tokens.
//
// Source:        paper, LM loss of the appendix
#pragma once

#include <tuple>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

struct CrossEntropy {
  Tensor loss;  // f32 []: mean(nll + z_weight * lse^2) over targets that are not ignored; differentiable
  Tensor nll;   // f32 []: mean -log softmax(x W^T)[target]
  Tensor z;     // f32 []: mean logsumexp(x W^T)^2
};

// Differentiable in x and weight through `loss`; nll and z are not differentiable. A mean over no targets is
// 0 and has zero gradients.
//
// Shapes:        x_TD [T, D] and weight_VD [V, D] f32, bf16 or f64, of one type; targets_T int64 [T], each in
//                [0, V) or ignore_index
// Returns:       f32, or f64 for f64 x
// Throws:        c10::Error "linear_cross_entropy: …" if shapes, types or devices do not fit or a target is
//                out of range. The host does not wait for a CUDA device. There, a target out of range prints
//                a line, and this launch and all later ones fail.
CrossEntropy linear_cross_entropy(const Tensor& x_TD, const Tensor& weight_VD, const Tensor& targets_T,
                                  double z_weight = 0.0, int64_t ignore_index = -100);

// Returns (log softmax(x W^T)[target] f32 [T], the likeliest id int64 [T]). Of several equally likely ids it
// returns the lowest. Arguments and errors are as above, without ignored targets.
std::tuple<Tensor, Tensor> token_log_probs(const Tensor& x_TD, const Tensor& weight_VD,
                                           const Tensor& targets_T);

// Checks the arguments of the CPU and CUDA kernels. `op` is the name that error messages begin with.
void check_linear_cross_entropy(const char* op, const Tensor& x_TD, const Tensor& weight_VD,
                                const Tensor& targets_T);

}  // namespace dtopp::ops
