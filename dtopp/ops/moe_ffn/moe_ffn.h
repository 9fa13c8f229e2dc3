// A layer's experts: for each token, the outputs of the experts it chose, weighted by its gates (paper, Eq.
// 1):
//
//   y = sum over e of gate_e E_e(x)       E_e(x) = W_down (silu(W_gate x) * W_up x)
//
// Only the A pairs of a token and an expert with a gate other than 0 cost anything.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp {

//   x_TD          [T, D]       f32, bf16 or f64
//   gates_TE      [T, E]       f32 (f64 for f64 x); 0 where the token did not choose the expert (route.h)
//   gate_up_proj  [E, 2F, D]   x's type: F rows of W_gate, then F rows of W_up
//   down_proj     [E, D, F]    x's type: W_down
//   y             [T, D]       x's type; sums are formed in f32 (f64)
//
// Any number of experts a token and of tokens an expert, none included; 0 tokens. Differentiable in all four;
// a gate that is 0 has the gradient 0. Kept for the backward pass: the inputs and [A, 2F], W_gate x and W_up
// x of each pair, nothing else. Throws c10::Error beginning "moe_ffn:" for shapes, types or devices that do
// not fit, and for more than a CUDA device takes (cuda_limits.h).
//
// max_pairs is for CUDA devices, which do not know A before the gates are there. 0: the host waits and reads
// it. Otherwise memory for so many pairs is allocated, and in bf16, with D and F multiples of 8 and on
// compute capability 9.0, the host does not wait. Should there be more pairs, some are left out of y: the
// caller finds that out from route's counts and runs the step again.
at::Tensor moe_ffn(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                   const at::Tensor& down_proj, int64_t max_pairs = 0);

}  // namespace dtopp
