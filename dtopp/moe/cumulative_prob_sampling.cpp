#include "dtopp/moe/cumulative_prob_sampling.h"

#include <algorithm>
#include <bit>

namespace dtopp::moe {
namespace {

constexpr int64_t kCheapExperts = 16, kLargestStride = 8, kFewestSampled = 2048;

}  // namespace

int64_t cumulative_prob_stride(int64_t num_experts, int64_t tokens_per_sample, int64_t tokens_per_step) {
  const int64_t wanted =
      std::min({kLargestStride, num_experts / kCheapExperts, tokens_per_step / kFewestSampled});
  const auto stride = std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(wanted, 1)));
  const int64_t dividing = tokens_per_sample & -tokens_per_sample;  // its largest power of two
  return std::min(static_cast<int64_t>(stride), dividing);
}

}  // namespace dtopp::moe
