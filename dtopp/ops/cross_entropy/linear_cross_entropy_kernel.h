// What the kernels of linear_cross_entropy and token_log_probs share: the argument checks.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// op: the name errors begin with.
void check_linear_cross_entropy(const char* op, const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                const at::Tensor& targets_T);

}  // namespace dtopp
