// What the kernels of moe_ffn share: the argument checks.
#pragma once

#include "dtopp/ops/torch.h"

namespace dtopp {

void check_moe_ffn(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                   const at::Tensor& down_proj);

}  // namespace dtopp
