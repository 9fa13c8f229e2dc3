// Squared norms of the parts of a tensor, each summed in an order of its own: what surrounds a part changes
// no bit.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// f64 [U]: of the numbers [offsets[u], offsets[u + 1]) of values, f32 [n], contiguous; offsets int64 [U + 1],
// on the same device, ascend from 0 to n. Not differentiable. c10::Error for other shapes, types and devices.
at::Tensor squared_norms(const at::Tensor& values, const at::Tensor& offsets);

void check_squared_norms(const at::Tensor& values, const at::Tensor& offsets);

}  // namespace dtopp
