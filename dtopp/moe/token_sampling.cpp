#include "dtopp/moe/token_sampling.h"

#include <algorithm>
#include <bit>

namespace dtopp::moe {
namespace {

constexpr int64_t kCheapExperts = 16, kLargestStride = 8;
constexpr int64_t kFewestOfProbs = 2048, kFewestOfLogits = 1024;

// The largest power of two that is at most `wanted` and divides a sample.
int64_t stride_of(int64_t wanted, int64_t tokens_per_sample) {
  const auto stride = std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(wanted, 1)));
  const int64_t dividing = tokens_per_sample & -tokens_per_sample;  // its largest power of two
  return std::min(static_cast<int64_t>(stride), dividing);
}

}  // namespace

int64_t cumulative_prob_stride(int64_t num_experts, int64_t tokens_per_sample, int64_t tokens_per_step) {
  return stride_of(std::min({kLargestStride, num_experts / kCheapExperts, tokens_per_step / kFewestOfProbs}),
                   tokens_per_sample);
}

int64_t logit_sum_stride(int64_t tokens_per_sample, int64_t tokens_per_step) {
  return stride_of(tokens_per_step / kFewestOfLogits, tokens_per_sample);
}

}  // namespace dtopp::moe
