// RMSNorm and LayerNorm without bias, for generation on a CPU.
//
// libtorch computes an RMSNorm on a CPU with nine operations. A step of one token waits longer for such small
// operations than for their numbers.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// (x - mean) / sqrt(variance + eps) * gain along the last dimension, without gradients. If `centred` is
// false, the mean is taken as 0 (RMSNorm). A row does not depend on the other rows.
//
// Shapes:        x [T, D], gain [D], both f32 or both bf16, on a CPU -> [T, D]
at::Tensor norm_by_row(const at::Tensor& x_TD, const at::Tensor& gain_D, double eps, bool centred);

}  // namespace dtopp::ops
