// Forward: one warp per token, with the probabilities in registers. Experts are selected one at a time, by a
// comparison across the warp of those that remain; of two equal ones the lower index wins. Their sum is kept
// in double in this order and compared with the threshold, as in the CPU kernel.
//
// A block processes kTokensPerBlock tokens. Counts are integers, added in shared memory and then by global
// atomics. Sums over tokens (P, entropy, router z) are kept in double per lane, added to the block's sum warp
// after warp, and written per block. A second kernel adds up the blocks. Every sum has a fixed order, and the
// host reads nothing. Mass is counted in whole numbers, which are exact as doubles up to 8 million tokens.
#include "dtopp/ops/route/route_token_cuda.h"

namespace dtopp::ops::cuda {
namespace {

// Replaces the score of a selected expert, and stands beyond the last expert.
template <typename Real>
constexpr Real kTaken = -kInfinity<Real>;

// Returns the expert with the largest number in `left`, the lowest index if several are equal.
template <typename Real, int kPerLane>
__device__ int likeliest(const Real (&left)[kPerLane]) {
  Real value = kTaken<Real>;
  int expert = 0;
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i) {
    if (left[i] > value) {
      value = left[i];
      expert = expert_of(i);
    }
  }
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const Real other = __shfl_xor_sync(kAllLanes, value, distance);
    const int other_expert = __shfl_xor_sync(kAllLanes, expert, distance);
    if (other > value || (other == value && other_expert < expert)) {
      value = other;
      expert = other_expert;
    }
  }
  return expert;
}

// Marks the expert with the largest number in `left`. Returns its probability.
template <typename Real, int kPerLane>
__device__ Real take_likeliest(const RouteToken<Real, kPerLane>& token, Real (&left)[kPerLane]) {
  const int next = likeliest(left);
  Real probability = 0;
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i) {
    if (expert_of(i) != next) continue;
    probability = token.p[i];
    left[i] = kTaken<Real>;
  }
  return __shfl_sync(kAllLanes, probability, next % kWarp);
}

// Marks the selected experts in `left`. Returns their number; `sum` adds up their probabilities in order.
template <typename Real, int kPerLane>
__device__ int select_experts(const RouteToken<Real, kPerLane>& token, int experts, const RouteRule& rule,
                              double threshold, Real (&left)[kPerLane], double* sum) {
  const int first = rule.by_threshold ? 1 : rule.most;  // NaNs have no order: select by index
  const bool finite = token.finite();
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i) {
    left[i] = expert_of(i) < experts ? token.p[i] : Real(kTaken<Real>);
    if (!finite && expert_of(i) < first) left[i] = kTaken<Real>;
  }
  *sum = finite ? 0 : kNotANumber<double>;
  if (!finite) return first;
  if (!rule.by_threshold && rule.bias_on != BiasOn::kNothing) return rule.most;  // select_biased() selects
  int count = 0;
  while (count < rule.most && (!rule.by_threshold || count == 0 || *sum < threshold)) {
    *sum += take_likeliest(token, left);
    ++count;
  }
  return count;
}

// Replaces a selection by equally many experts with the largest biased score. Marks them in `left` and
// returns the sum of their probabilities.
template <typename Real, int kPerLane>
__device__ double select_biased(const RouteToken<Real, kPerLane>& token, int experts, const RouteRule& rule,
                                const Real* bias_E, int count, Real (&left)[kPerLane]) {
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i) {
    left[i] = kTaken<Real>;
    if (expert_of(i) >= experts) continue;
    const Real bias = bias_E[expert_of(i)];
    const Real score = rule.bias_on == BiasOn::kLogit   ? token.p[i] * bias
                       : rule.bias_on == BiasOn::kScore ? std::exp(token.s[i]) + bias
                                                        : token.p[i] + bias;
    left[i] = score > kLowest<Real> ? score : Real(kLowest<Real>);  // NaN has no order
  }
  double sum = 0;
  for (int n = 0; n < count; ++n) sum += take_likeliest(token, left);
  return sum;
}

template <typename Real, int kPerLane>
__device__ Real entropy_of(const RouteToken<Real, kPerLane>& token) {
  Real entropy = 0;
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i)
    entropy += token.p[i] == 0 ? Real(0) : token.p[i] * (token.lse - token.s[i]);
  return warp_sum(entropy);
}

// Whether the token selects this expert by its logit alone.
template <typename Real>
__device__ bool is_above(Real z, const Real* cut_E, int e) {
  return cut_E == nullptr ? !(z <= 0) : !(z < cut_E[e]);
}

// A block's shared memory: sums of P over its tokens, scratch (one number per warp) and counts.
struct BlockStatistics {
  double *prob_E, *scratch;
  int *counts_E, *histogram;

  __device__ explicit BlockStatistics(int experts)
      : prob_E(reinterpret_cast<double*>(shared_memory())),
        scratch(prob_E + experts),
        counts_E(reinterpret_cast<int*>(scratch + kRouteWarps)),
        histogram(counts_E + experts) {}

  static size_t bytes(int64_t experts) {
    return (experts + kRouteWarps) * sizeof(double) + (2 * experts + 1) * sizeof(int);
  }

  __device__ void clear(int experts) const {
    for (int e = static_cast<int>(threadIdx.x); e <= experts; e += kRouteThreads) {
      if (e < experts) prob_E[e] = 0;
      if (e < experts) counts_E[e] = 0;
      histogram[e] = 0;
    }
    __syncthreads();
  }

  __device__ void add_counts_to(int64_t* counts, int64_t* histogram_total, int experts) const {
    const auto add = [](int64_t* to, int count) {
      if (count != 0)
        atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(count));
    };
    for (int e = static_cast<int>(threadIdx.x); e <= experts; e += kRouteThreads) {
      if (e < experts) add(counts + e, counts_E[e]);
      add(histogram_total + e, histogram[e]);
    }
  }
};

// Sums over a warp's tokens. All but `prob` are equal in all lanes.
template <int kPerLane>
struct WarpSums {
  double prob[kPerLane] = {}, entropy = 0, z = 0, mass = 0, likeliest_mass = 0;
};

template <typename Scalar, int kPerLane>
__device__ void route_token(const RouteForward<Scalar>& in, int64_t t,
                            typename RouteForward<Scalar>::Real theta, const BlockStatistics& statistics,
                            WarpSums<kPerLane>& sums) {
  using Real = typename RouteForward<Scalar>::Real;
  const int experts = static_cast<int>(in.experts);
  RouteToken<Real, kPerLane> token;
  load_token(in.logits_TE + t * experts, experts, in.rule, theta, token);
  Real left[kPerLane];
  double chosen_sum = 0;
  // Before the first thresholds, gates are sigmoids but the likeliest experts are selected.
  const bool own =
      in.rule.gate == Gate::kRelu || (in.rule.gate == Gate::kSigmoid && in.cut_E[0] == in.cut_E[0]);
  int count = own ? 0 : select_experts(token, experts, in.rule, *in.threshold, left, &chosen_sum);
  if (in.bias_E != nullptr && token.finite()) {
    const double likeliest_sum = chosen_sum;
    chosen_sum = select_biased(token, experts, in.rule, in.bias_E, count, left);
    if (in.rule.by_threshold) {
      sums.mass += std::round(chosen_sum / kMassPerUnit);
      sums.likeliest_mass += std::round(likeliest_sum / kMassPerUnit);
    }
  }
  const double divisor = in.rule.renormalize ? chosen_sum : 1;
  Real* gates_E = in.gates_TE + t * experts;
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i) {
    if (expert_of(i) >= experts) continue;
    const Real z = token.z[i];
    Real gate = in.rule.gate == Gate::kRelu      ? z
                : in.rule.gate == Gate::kSigmoid ? 1 / (1 + std::exp(-z))
                                                 : static_cast<Real>(token.p[i] / divisor);
    const bool chosen = own ? is_above(z, in.cut_E, expert_of(i)) && gate != 0 : left[i] == kTaken<Real>;
    if (!chosen) gate = 0;
    gates_E[expert_of(i)] = gate;
    if (chosen) atomicAdd(statistics.counts_E + expert_of(i), 1);
    if (own) count += chosen ? 1 : 0;
    sums.prob[i] += in.rule.gate == Gate::kRelu ? gate : token.p[i];
  }
  if (own) count = warp_sum(count);
  if (lane_index() == 0) atomicAdd(statistics.histogram + count, 1);
  sums.entropy += entropy_of(token);
  const double lse = in.rule.normalize ? exponentials(token.z, experts, left).lse() : token.lse;
  sums.z += lse * lse;
}

template <typename Scalar, int kPerLane>
__global__ void __launch_bounds__(kRouteThreads) route_kernel(RouteForward<Scalar> in) {
  using Real = typename RouteForward<Scalar>::Real;
  const int experts = static_cast<int>(in.experts);
  const BlockStatistics statistics(experts);
  statistics.clear(experts);
  WarpSums<kPerLane> sums;
  const Real theta = in.rule.learn_scale ? *in.scale : Real(1);
  const int64_t first = blockIdx.x * kTokensPerBlock + warp_index() * kTokensPerWarp;
  for (int64_t t = first; t < first + kTokensPerWarp && t < in.tokens; ++t)
    route_token<Scalar, kPerLane>(in, t, theta, statistics, sums);
  for (int warp = 0; warp < kRouteWarps; ++warp) {
#pragma unroll unrolled(kPerLane)
    for (int i = 0; i < kPerLane; ++i)
      if (warp == warp_index() && expert_of(i) < experts) statistics.prob_E[expert_of(i)] += sums.prob[i];
    __syncthreads();
  }
  const double entropy = sum_of_warps(sums.entropy, statistics.scratch);
  const double z = sum_of_warps(sums.z, statistics.scratch);
  const double mass = sum_of_warps(sums.mass, statistics.scratch);
  const double likeliest_mass = sum_of_warps(sums.likeliest_mass, statistics.scratch);
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kRouteThreads)
    in.sums[e * static_cast<int64_t>(gridDim.x) + blockIdx.x] = statistics.prob_E[e];
  if (threadIdx.x == 0) {
    double* sum = in.sums + experts * static_cast<int64_t>(gridDim.x) + blockIdx.x;
    for (const double one : {entropy, z, mass, likeliest_mass}) {
      *sum = one;
      sum += gridDim.x;
    }
  }
  statistics.add_counts_to(in.counts_E, in.histogram, experts);
}

// One block per mean over all tokens: P of each expert, entropy, router z. Two more blocks sum the mass.
template <typename Scalar>
__global__ void __launch_bounds__(kRouteThreads) means_kernel(RouteForward<Scalar> in, int64_t blocks) {
  using Real = typename RouteForward<Scalar>::Real;
  const int64_t index = blockIdx.x;
  const double sum =
      sum_of_blocks(in.sums + index * blocks, blocks, reinterpret_cast<double*>(shared_memory()));
  if (threadIdx.x != 0) return;
  if (index >= in.experts + 2) {
    in.mass[index - in.experts - 2] = static_cast<int64_t>(sum);
    return;
  }
  const Real mean = static_cast<Real>(sum / static_cast<double>(in.tokens > 0 ? in.tokens : 1));
  Real* to = index < in.experts ? in.mean_prob_E + index : index == in.experts ? in.entropy : in.router_z;
  *to = mean;
}

}  // namespace

int64_t route_blocks(int64_t tokens) { return ceil_divide(tokens, kTokensPerBlock); }

template <typename Scalar>
void route_forward(const RouteForward<Scalar>& route, Stream stream) {
  const int64_t blocks = route_blocks(route.tokens);
  dispatch_per_lane(route.experts, [&](auto per_lane) {
    launch({"route", stream, blocks, kRouteThreads, BlockStatistics::bytes(route.experts)},
           route_kernel<Scalar, per_lane()>, route);
  });
  launch({"route", stream, route.experts + 4, kRouteThreads, kRouteWarps * sizeof(double)},
         means_kernel<Scalar>, route, blocks);
}

template void route_forward(const RouteForward<float>&, Stream);
template void route_forward(const RouteForward<double>&, Stream);
template void route_forward(const RouteForward<Bfloat16>&, Stream);

}  // namespace dtopp::ops::cuda
