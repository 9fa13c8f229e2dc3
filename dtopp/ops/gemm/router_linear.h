// A router's logits: z = W x (the paper's "Background"), in fp32 whatever x is.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// x [T, D], weight [E, D] of the same floating dtype, or x bf16 and the weight fp32; logits [T, E] in the
// weight's, exact to its rounding. Differentiable in both; the gradient of x has its dtype. What is kept for
// the backward pass are the inputs as they are. A bf16 x is multiplied in parts on a CUDA device, whose
// matrix units are an order of magnitude faster in bf16 than in fp32.
at::Tensor router_linear(const at::Tensor& x_TD, const at::Tensor& weight_ED);

// In parts on any device: x bf16, and the fp32 weight as the sum of three bf16 numbers (8 + 8 + 8 bits are
// its 24), so that every product is exact and sums are formed in fp32. So is the gradient of the weight, from
// three parts of the logits' gradient; that of x, which is rounded to bf16, from the upper two of both.
at::Tensor router_linear_in_parts(const at::Tensor& x_TD, const at::Tensor& weight_ED);

}  // namespace dtopp
