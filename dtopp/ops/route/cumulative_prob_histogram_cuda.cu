// One warp per token, with the probabilities in registers and also in shared memory, where each is compared
// with all others. Counts are integers, added in shared memory and then by global atomics.
#include "dtopp/ops/route/cumulative_prob_bins.h"
#include "dtopp/ops/route/route_token_cuda.h"

namespace dtopp::ops::cuda {
namespace {

// A block's shared memory: its counts, then each warp's probabilities.
template <typename Real>
size_t block_bytes(int64_t experts) {
  return kCumulativeProbBins * sizeof(int) + kRouteWarps * static_cast<size_t>(experts) * sizeof(Real);
}

template <typename Scalar, int kPerLane>
__device__ void count_token(const CumulativeProbHistogram<Scalar>& of, int64_t t,
                            typename CumulativeProbHistogram<Scalar>::Real theta,
                            typename CumulativeProbHistogram<Scalar>::Real* p_E, int* counts) {
  using Real = typename CumulativeProbHistogram<Scalar>::Real;
  const int experts = static_cast<int>(of.experts);
  RouteToken<Real, kPerLane> token;
  load_token(of.logits_TE + t * experts, experts, of.rule, theta, token);
  if (!token.finite()) return;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (expert_of(i) < experts) p_E[expert_of(i)] = token.p[i];
  __syncwarp();
  const int real = experts - static_cast<int>(of.zero_experts), first_rank = of.zero_experts > 0 ? 0 : 1;
  for (int e = lane_index(); e < real; e += kWarp) {
    Real before = 0;
    int rank = 0;
    for (int other = 0; other < experts; ++other) {
      const bool first = p_E[other] > p_E[e] || (p_E[other] == p_E[e] && other < e);
      before += first ? p_E[other] : Real(0);
      rank += first ? 1 : 0;
    }
    if (rank >= first_rank && rank < of.rule.most) atomicAdd(counts + cumulative_prob_bin(before), 1);
  }
  __syncwarp();
}

template <typename Scalar, int kPerLane>
__global__ void __launch_bounds__(kRouteThreads)
    cumulative_prob_histogram_kernel(CumulativeProbHistogram<Scalar> of) {
  using Real = typename CumulativeProbHistogram<Scalar>::Real;
  auto* counts = reinterpret_cast<int*>(shared_memory());
  auto* p_E = reinterpret_cast<Real*>(counts + kCumulativeProbBins) + warp_index() * of.experts;
  for (int m = static_cast<int>(threadIdx.x); m < kCumulativeProbBins; m += kRouteThreads) counts[m] = 0;
  __syncthreads();
  const Real theta = of.rule.learn_scale ? *of.scale : Real(1);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kRouteWarps;
  for (int64_t n = blockIdx.x * kRouteWarps + warp_index(); n * of.stride < of.tokens; n += step)
    count_token<Scalar, kPerLane>(of, n * of.stride, theta, p_E, counts);
  __syncthreads();
  for (int m = static_cast<int>(threadIdx.x); m < kCumulativeProbBins; m += kRouteThreads) {
    if (counts[m] != 0)
      atomicAdd(reinterpret_cast<unsigned long long*>(of.counts + m),
                static_cast<unsigned long long>(counts[m]));
  }
}

}  // namespace

template <typename Scalar>
void cumulative_prob_histogram(const CumulativeProbHistogram<Scalar>& of, Stream stream) {
  constexpr int64_t kBlocksOfMultiprocessor = 4;
  const int64_t needed = ceil_divide(ceil_divide(of.tokens, of.stride), kTokensPerBlock);
  const int64_t blocks = std::min(needed, kBlocksOfMultiprocessor * current_device().multiprocessors);
  dispatch_per_lane(of.experts, [&](auto per_lane) {
    launch({"cumulative_prob_histogram", stream, blocks, kRouteThreads,
            block_bytes<typename CumulativeProbHistogram<Scalar>::Real>(of.experts)},
           cumulative_prob_histogram_kernel<Scalar, per_lane()>, of);
  });
}

template void cumulative_prob_histogram(const CumulativeProbHistogram<float>&, Stream);
template void cumulative_prob_histogram(const CumulativeProbHistogram<double>&, Stream);
template void cumulative_prob_histogram(const CumulativeProbHistogram<Bfloat16>&, Stream);

}  // namespace dtopp::ops::cuda
