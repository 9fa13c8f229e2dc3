// Argument checks that the CPU and CUDA kernels of linear_cross_entropy and token_log_probs share.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// `op` is the name that error messages begin with.
void check_linear_cross_entropy(const char* op, const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                const at::Tensor& targets_T);

}  // namespace dtopp
