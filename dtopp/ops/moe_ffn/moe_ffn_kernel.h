// Argument checks that moe_ffn's CPU and CUDA kernels share.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// Each function checks the arguments of the op that it is named after. It reads dtypes, devices and sizes,
// never values.
void check_moe_ffn(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                   const at::Tensor& down_proj, int64_t capacity);
void check_moe_ffn_forward(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& pairs_A2,
                           const at::Tensor& gate_up_proj, const at::Tensor& down_proj);
void check_moe_ffn_pre_activations(const at::Tensor& x_TD, const at::Tensor& gates_TE,
                                   const at::Tensor& pairs_A2, const at::Tensor& gate_up_proj,
                                   const at::Tensor& down_proj);
void check_moe_ffn_backward(const at::Tensor& grad_y_TD, const at::Tensor& x_TD, const at::Tensor& gates_TE,
                            const at::Tensor& gate_up_proj, const at::Tensor& down_proj,
                            const at::Tensor& pre_activations_AG);
void check_moe_ffn_backward_sums(const at::Tensor& grad_y_TD, const at::Tensor& x_TD,
                                 const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                                 const at::Tensor& down_proj, const at::Tensor& pre_activations_AG,
                                 const at::Tensor& gate_up_sum, const at::Tensor& down_sum);

// Checks the contents of an op's pairs_A2 on a CPU: valid experts and tokens in ascending order, without
// duplicates.
void check_pairs(const char* op, const at::Tensor& pairs_A2, int64_t experts, int64_t tokens);

}  // namespace dtopp::ops
