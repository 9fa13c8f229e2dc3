// Computes the expert FFNs of an MoE layer: for each token, the outputs of its selected experts, weighted by
// its gates.
//
//   y = sum over e of gate_e E_e(x)       E_e(x) = W_down (silu(W_gate x) * W_up x)
//
// Only the A token–expert pairs with a gate other than 0 are computed.
//
// Source:        paper, Eq. 1
#pragma once

#include <tuple>

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
Tensor moe_ffn(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& gate_up_proj,
               const Tensor& down_proj, int64_t capacity = 0, bool recompute = false);

// moe_ffn without gradients, for tokens that are generated. Arguments, result and errors are those of
// moe_ffn.
//
// On a CPU in bf16, a step reads the weights of each expert that any token selected once, without packing
// them. The tokens of such a step have few rows per expert, so memory is what limits it. On a CPU (in bf16:
// without AMX), a row of y does not depend on the other rows.
Tensor moe_ffn_by_row(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& gate_up_proj,
                      const Tensor& down_proj);

// Argument checks that the CPU and CUDA kernels share.

using TensorPair = std::tuple<Tensor, Tensor>;
using TensorQuadruple = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// These functions check the arguments of an op. They read dtypes, devices and sizes, never values. `op` is
// the name that error messages begin with.
void check_moe_ffn(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& gate_up_proj,
                   const Tensor& down_proj, int64_t capacity);
// For moe_ffn_forward and moe_ffn_pre_activations.
void check_moe_ffn_forward(const char* op, const Tensor& x_TD, const Tensor& gates_TE, const Tensor& pairs_A2,
                           const Tensor& gate_up_proj, const Tensor& down_proj);
void check_moe_ffn_backward(const char* op, const Tensor& grad_y_TD, const Tensor& x_TD,
                            const Tensor& gates_TE, const Tensor& gate_up_proj, const Tensor& down_proj,
                            const Tensor& pre_activations_AG);
void check_moe_ffn_backward_sums(const Tensor& grad_y_TD, const Tensor& x_TD, const Tensor& gates_TE,
                                 const Tensor& gate_up_proj, const Tensor& down_proj,
                                 const Tensor& pre_activations_AG, const Tensor& gate_up_sum,
                                 const Tensor& down_sum);

// Checks the contents of an op's pairs_A2 on a CPU: valid experts and tokens in ascending order, without
// duplicates.
void check_pairs(const char* op, const Tensor& pairs_A2, int64_t experts, int64_t tokens);

}  // namespace dtopp::ops
