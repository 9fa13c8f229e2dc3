// The GEMMs of moe_ffn on a CUDA device, with the steps between them. Pairs::gemms selects per GEMM:
// torch's grouped GEMM and separate kernels, or one fused kernel (fused_gemm.h).
//
// Shapes:        as in moe_ffn_cuda.h; rows beyond the pairs stay uninitialized
#pragma once

#include "dtopp/ops/core/gradient_accumulation_hook.h"
#include "dtopp/ops/moe_ffn/moe_ffn_pairs_cuda.h"

namespace dtopp::ops::cuda {

// Returns the reference path unless weights are bf16 with widths and addresses that are multiples of 16
// bytes, else the choice of fused_kernels() if the device and the widths support it. at::_grouped_mm accepts
// up to 1,023 experts; beyond that, GEMMs without a fused kernel take the reference path. Throws c10::Error
// if the environment variable DTOPP_MOE_KERNELS is invalid.
GemmChoice choose_gemms(const at::Tensor& gate_up_EGD, const at::Tensor& down_EDF);

struct ActivatedPairs {
  at::Tensor pre_AG, act_AF;
};
ActivatedPairs activate_pairs(const Pairs& pairs, const at::Tensor& x_TD, const at::Tensor& gate_up_EGD);

// [A, D]
at::Tensor project_pairs(const Pairs& pairs, const at::Tensor& act_AF, const at::Tensor& down_EDF);

// Gradients from that of a token's output sum.
struct ActivationGradient {
  at::Tensor d_pre_AG;
  at::Tensor scaled_AF;     // the activation times the pair's gate
  at::Tensor grad_gate_AP;  // in parts; the sum over P is the gate's gradient
  at::Tensor dy_AD;         // the pairs' rows of dy_TD, if they were gathered and are still needed
};
ActivationGradient activation_gradient(const Pairs& pairs, const at::Tensor& dy_TD, const at::Tensor& pre_AG,
                                       const at::Tensor& down_EDF);

// Returns an undefined tensor if the gradient went to `target`; gate_up_gradient does the same. The sum must
// be f32 for bf16 weights and aligned to 16 bytes.
at::Tensor down_gradient(const Pairs& pairs, const at::Tensor& dy_TD, const ActivationGradient& gradient,
                         const AccumulationTarget& target = {});

// [A, D]
at::Tensor input_gradient(const Pairs& pairs, const at::Tensor& d_pre_AG, const at::Tensor& gate_up_EGD);

at::Tensor gate_up_gradient(const Pairs& pairs, const at::Tensor& d_pre_AG, const at::Tensor& x_TD,
                            const AccumulationTarget& target = {});

}  // namespace dtopp::ops::cuda
