// Selects the tokens of a step that its statistics are over: every stride-th token of a sample. They do not
// depend on micro-batches or ranks, because strides divide a sample.
#pragma once

#include <cstdint>

namespace dtopp::moe {

// The stride of the cumulative probabilities (ops/route/cumulative_prob_histogram.h). With more experts,
// fewer tokens are sampled: the comparisons between experts stay below 1 % of a step. The stride is at most
// 8, and a step samples at least 2,048 tokens if it has that many.
int64_t cumulative_prob_stride(int64_t num_experts, int64_t tokens_per_sample, int64_t tokens_per_step);

// The stride of the sums of logits (moe/expert_normalization.h). A step samples at least 1,024 tokens if it
// has that many.
int64_t logit_sum_stride(int64_t tokens_per_sample, int64_t tokens_per_step);

}  // namespace dtopp::moe
