// Squared L2 norms of the parts of a tensor. Each part is summed in its own order, so its neighbors never
// change its result.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// Sums the squares of values[offsets[u]] … values[offsets[u + 1] - 1] for each u. Not differentiable.
//
// Shapes:        values f32 [n], contiguous; offsets int64 [U + 1] on the same device, ascending from 0 to n
// Returns:       f64 [U]
// Throws:        c10::Error "squared_norms: …" if the shapes, types or devices do not fit
Tensor squared_norms(const Tensor& values, const Tensor& offsets);

void check_squared_norms(const Tensor& values, const Tensor& offsets);

}  // namespace dtopp::ops
