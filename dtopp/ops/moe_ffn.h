// moe_ffn: y = sum_i r_i E_i(x), E_i(x) = W_down (silu(W_gate x) * W_up x) (paper, Eq. 1).
#pragma once

#include "dtopp/ops/torch.h"

namespace dtopp {

// x_TD [T, D]; gates_TE f32 [T, E], 0 where an expert is not chosen; gate_up_proj [E, 2F, D] (gate rows
// first); down_proj [E, D, F]. Any number of experts per token, none for an expert, 0 tokens. Differentiable
// in all four; saves its inputs and the gate/up pre-activations [A, 2F] of the A chosen token-expert pairs,
// nothing else. Throws c10::Error beginning "moe_ffn:" for wrong shapes, dtypes or devices.
//
// max_pairs is for CUDA devices: 0 allocates for the number of pairs, which is read on the host; otherwise
// there is room for that many and, in bf16 with D and F multiples of 8 on compute capability 9.0, nothing is
// read on the host. Where there are more pairs, some are left out: the caller compares route's counts with it
// and runs again.
at::Tensor moe_ffn(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                   const at::Tensor& down_proj, int64_t max_pairs = 0);

}  // namespace dtopp
