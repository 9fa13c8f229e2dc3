// Reads ranks from counts of logits (ops/route/logit_histogram.h).
#pragma once

#include <cstdint>

#include "dtopp/ops/core/torch.h"

namespace dtopp::moe {

// The rank-th largest logit, linear inside its bin. Counts are whole numbers of any type [.., kLogitBins],
// the result is f64 [..].
at::Tensor ranked_logit(const at::Tensor& counts, int64_t rank);

}  // namespace dtopp::moe
