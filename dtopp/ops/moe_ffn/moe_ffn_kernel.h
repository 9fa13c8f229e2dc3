// What the kernels of moe_ffn share: the argument checks.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// Each is named for the op whose arguments it checks, of which it reads nothing but the sizes.
void check_moe_ffn(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                   const at::Tensor& down_proj, int64_t max_pairs);
void check_moe_ffn_forward(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& pairs_A2,
                           const at::Tensor& gate_up_proj, const at::Tensor& down_proj);
void check_moe_ffn_backward(const at::Tensor& grad_y_TD, const at::Tensor& x_TD, const at::Tensor& gates_TE,
                            const at::Tensor& gate_up_proj, const at::Tensor& down_proj,
                            const at::Tensor& pre_activations_AG);
void check_moe_ffn_backward_sums(const at::Tensor& grad_y_TD, const at::Tensor& x_TD,
                                 const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                                 const at::Tensor& down_proj, const at::Tensor& pre_activations_AG,
                                 const at::Tensor& gate_up_sum, const at::Tensor& down_sum);

// What is in moe_ffn_forward's pairs_A2, on a CPU: experts and tokens that there are, ascending, none twice.
void check_pairs(const at::Tensor& pairs_A2, int64_t experts, int64_t tokens);

}  // namespace dtopp
