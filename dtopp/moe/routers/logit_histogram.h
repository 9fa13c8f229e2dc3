// Counts the logits of each expert in bins, and reads ranks from the counts. Counts of micro-batches and
// ranks add up, so the result does not depend on how a step is divided.
#pragma once

#include <cstdint>

#include "dtopp/ops/core/torch.h"

namespace dtopp::moe {

// Bins of 1/32 over [-16, 16). The outermost two also count all logits beyond.
constexpr int64_t kLogitBins = 1024;

// logits_TE f32 -> int64 [E, kLogitBins]. NaN counts as the smallest logit.
at::Tensor logit_histogram(const at::Tensor& logits_TE);

// The rank-th largest logit, linear inside its bin. Counts are whole numbers of any type [.., kLogitBins],
// the result is f64 [..].
at::Tensor ranked_logit(const at::Tensor& counts, int64_t rank);

}  // namespace dtopp::moe
