// The step of Muon: every singular value of a matrix becomes about 1.
//
// Source:        Jordan et al., Muon (https://kellerjordan.github.io/posts/muon)
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// Approximates U V^T of each matrix U S V^T by five Newton-Schulz steps. Singular values above a hundredth of
// the norm end between 0.6 and 1.3; those that are 0 stay 0.
//
// Products are bf16 or f32 (`bf16`). A matrix has the same bits whatever the other matrices are. Not
// differentiable.
//
// Shapes:        matrices_BMN f32 [B, M, N] -> alike
// Throws:        c10::Error "orthogonalize: …" if the shape or type does not fit
Tensor orthogonalize(const Tensor& matrices_BMN, bool bf16);

// FLOPs of one M x N matrix. Symmetric products count half.
double orthogonalize_flops(double M, double N);

}  // namespace dtopp::ops
