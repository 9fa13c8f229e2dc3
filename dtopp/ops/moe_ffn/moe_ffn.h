// Computes the expert FFNs of an MoE layer: for each token, the outputs of its selected experts, weighted by
// its gates.
//
//   y = sum over e of gate_e E_e(x)       E_e(x) = W_down (silu(W_gate x) * W_up x)
//
// Only the A token–expert pairs with a gate other than 0 are computed.
//
// Source:        paper, Eq. 1
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {
//   x_TD          [T, D]       f32, bf16 or f64
//   gates_TE      [T, E]       f32 (f64 for f64 x); 0 for experts that the token did not select (route.h)
//   gate_up_proj  [E, 2F, D]   x's type: F rows of W_gate, then F rows of W_up
//   down_proj     [E, D, F]    x's type: W_down
//   y             [T, D]       x's type; sums are formed in f32 (f64)
//
// Tokens may have any number of experts and experts any number of tokens, including none. Differentiable in
// all four inputs; a gate of 0 has the gradient 0. Autograd saves the inputs and [A, 2F], W_gate x and W_up x
// of each pair, and nothing else. If both weights have a hook with a sum (gradient_accumulation_hook.h),
// their gradients go to the sums.
//
// recompute: the backward pass computes these [A, 2F] again, to the same bits. Autograd saves the indices of
// the pairs instead, 16 bytes each.
//
// capacity: the pairs that a CUDA device has memory for. The host does not have A in advance; with 0 it waits
// for the device and reads A. With a capacity it does not wait in bf16 with D and F multiples of 8 on compute
// capability 9.0. If A exceeds capacity, the op leaves some pairs out of y: the caller must compare route's
// counts with capacity and repeat the step.
//
// Throws:        c10::Error "moe_ffn: …" if shapes, types or devices do not fit, or if they exceed the limits
//                of a CUDA device (cuda_types.h)
at::Tensor moe_ffn(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                   const at::Tensor& down_proj, int64_t capacity = 0, bool recompute = false);

// The expert FFNs of tokens that are generated: moe_ffn (moe_ffn.h) without gradients.
//
// On a CPU in bf16, a step reads the weights of each expert that any token selected once, without packing
// them. The tokens of such a step have few rows per expert, so memory is what limits it.

// On a CPU (in bf16: without AMX), a row of y does not depend on the other rows. Arguments, result and errors
// are those of moe_ffn.
at::Tensor moe_ffn_by_row(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                          const at::Tensor& down_proj);

}  // namespace dtopp::ops
