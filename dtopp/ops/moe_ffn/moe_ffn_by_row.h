// The expert FFNs of tokens that are generated: moe_ffn (moe_ffn.h) without gradients.
//
// On a CPU in bf16, a step reads the weights of each expert that any token selected once, without packing
// them. The tokens of such a step have few rows per expert, so memory is what limits it.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// On a CPU (in bf16: without AMX), a row of y does not depend on the other rows. Arguments, result and errors
// are those of moe_ffn.
at::Tensor moe_ffn_by_row(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                          const at::Tensor& down_proj);

}  // namespace dtopp::ops
