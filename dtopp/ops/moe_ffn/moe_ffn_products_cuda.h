// The products of moe_ffn on a CUDA device, with what stands between them: each by torch's grouped product
// and kernels for the rest, or in one with it (pair_products_cuda.h), as Pairs::products says. Shapes:
// moe_ffn_cuda.h. Rows past the pairs are left as allocated.
#pragma once

#include "dtopp/ops/core/gradient_sum.h"
#include "dtopp/ops/moe_ffn/moe_ffn_pairs_cuda.h"

namespace dtopp::cuda {

struct ActivatedPairs {
  at::Tensor pre_AG, act_AF;
};
ActivatedPairs activate_pairs(const Pairs& pairs, const at::Tensor& x_TD, const at::Tensor& gate_up_EGD);

// [A, D]
at::Tensor project_pairs(const Pairs& pairs, const at::Tensor& act_AF, const at::Tensor& down_EDF);

// From the gradient of the sum over a token's pairs.
struct ActivationGradient {
  at::Tensor d_pre_AG;
  at::Tensor scaled_AF;     // the activation times the pair's gate
  at::Tensor grad_gate_AP;  // in parts
  at::Tensor dy_AD;         // the pairs' rows of dy_TD, where they were gathered and are needed
};
ActivationGradient activation_gradient(const Pairs& pairs, const at::Tensor& dy_TD, const at::Tensor& pre_AG,
                                       const at::Tensor& down_EDF);

// Undefined where it went to `place`; so does that of gate_up. The place's sum is f32 for weights in bf16,
// and aligned to 16 bytes.
at::Tensor down_gradient(const Pairs& pairs, const at::Tensor& dy_TD, const ActivationGradient& gradient,
                         const SumPlace& place = {});

// [A, D]
at::Tensor input_gradient(const Pairs& pairs, const at::Tensor& d_pre_AG, const at::Tensor& gate_up_EGD);

at::Tensor gate_up_gradient(const Pairs& pairs, const at::Tensor& d_pre_AG, const at::Tensor& x_TD,
                            const SumPlace& place = {});

}  // namespace dtopp::cuda
