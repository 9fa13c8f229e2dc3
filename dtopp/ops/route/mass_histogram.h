// How many experts would join at any threshold: counts of the probability mass c_j that lies before a token's
// j-th likeliest expert, j >= 2, over tokens. Since that expert is chosen by a threshold p exactly when
// c_j < p (route.h), the mean number of active experts at p is
//
//   a(p) = 1 + (number of c_j < p) / tokens
#pragma once

#include <cstdint>
#include <string_view>

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// int64 [kMassBins] (mass_bins.h): every `stride`-th token from the first on is counted, its experts up to
// max_experts (0: all). logits_TE, scale and normalization as in route; so are the errors, which begin with
// "mass_histogram:". Tokens whose logits are not finite are left out: they have one expert. Not
// differentiable.
at::Tensor mass_histogram(const at::Tensor& logits_TE, const at::Tensor& scale,
                          std::string_view normalization, int64_t max_experts, int64_t stride);

}  // namespace dtopp
