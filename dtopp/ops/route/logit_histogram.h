// Counts the logits of each expert in bins. ranked_logit reads ranks from the counts. Counts of
// micro-batches and ranks add up, so a rank does not depend on how a step is divided.
#pragma once

#include <cstdint>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// Bins of 1/32 over [-16, 16). The outermost two also count all logits beyond.
constexpr int64_t kLogitBins = 1024;
constexpr double kLowestLogit = -16, kLogitBinsPerUnit = 32;

// Counts every `stride`-th token from the first on. NaN counts as the smallest logit. Not differentiable.
//
// Shapes:        logits_TE f32|f64 [T, E] -> int64 [E, kLogitBins]
// Throws:        c10::Error "logit_histogram: …" if type, shape or stride do not fit
at::Tensor logit_histogram(const at::Tensor& logits_TE, int64_t stride);

// The rank-th largest logit, linear inside its bin. Counts are whole numbers of any type [.., kLogitBins],
// the result is f64 [..].
at::Tensor ranked_logit(const at::Tensor& counts, int64_t rank);

}  // namespace dtopp::ops
