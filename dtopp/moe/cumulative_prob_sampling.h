// Selects the tokens of a step whose cumulative probabilities are counted
// (ops/route/cumulative_prob_histogram.h).
#pragma once

#include <cstdint>

namespace dtopp::moe {

// Returns the stride: every stride-th token of a sample is counted.
//
// The sampled tokens do not depend on micro-batches or ranks, because strides divide a sample. With more
// experts, fewer tokens are sampled: the comparisons between experts stay below 1 % of a step. The stride is
// at most 8, and a step samples at least 2,048 tokens if it has that many.
int64_t cumulative_prob_stride(int64_t num_experts, int64_t tokens_per_sample, int64_t tokens_per_step);

}  // namespace dtopp::moe
