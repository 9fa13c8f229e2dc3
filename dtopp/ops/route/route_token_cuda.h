// One token per warp, shared by route's CUDA forward and backward passes. Lane l holds expert l + 32 i in its
// i-th number. Also sums over warps and blocks of tokens.
#pragma once

#include "dtopp/ops/cuda/cuda_kernel.h"
#include "dtopp/ops/route/route_cuda.h"

namespace dtopp::ops::cuda {

constexpr int kRouteWarps = 4;
constexpr int kRouteThreads = kRouteWarps * kWarp;
constexpr int kTokensPerWarp = 8;
constexpr int64_t kTokensPerBlock = kRouteWarps * kTokensPerWarp;

// More than 32 numbers per lane do not fit into registers. Unrolled, they take half of the compile time.
__device__ constexpr int unrolled(int per_lane) { return per_lane <= 32 ? per_lane : 1; }

template <typename Real, int kPerLane>
struct RouteToken {
  Real z[kPerLane], xhat[kPerLane], s[kPerLane], p[kPerLane];
  Real inverse_sigma, lse, sum;

  // False if s contains NaN or +inf, or only -inf. Every probability is NaN then.
  __device__ bool finite() const { return sum - sum == 0; }
};

__device__ inline int expert_of(int i) { return lane_index() + kWarp * i; }

template <typename Real>
struct Exponentials {
  Real highest, sum;
  __device__ Real lse() const { return highest + std::log(sum); }
};

// out = exp(s - max s), and 0 beyond the last expert. Returns the maximum and the sum of `out`.
template <typename Real, int kPerLane>
__device__ Exponentials<Real> exponentials(const Real (&s)[kPerLane], int experts, Real (&out)[kPerLane]) {
  Real highest = -kInfinity<Real>;
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i)
    if (expert_of(i) < experts) highest = s[i] > highest ? s[i] : highest;
  highest = warp_max(highest);
  Real sum = 0;
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i) {
    out[i] = expert_of(i) < experts ? std::exp(s[i] - highest) : Real(0);
    sum += out[i];
  }
  return {highest, warp_sum(sum)};
}

// xhat = (z - mean) / sigma. Returns 1 / sigma.
template <typename Real, int kPerLane>
__device__ Real normalize(const Real (&z)[kPerLane], int experts, Real (&xhat)[kPerLane]) {
  Real sum = 0, squares = 0;
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i) sum += expert_of(i) < experts ? z[i] : Real(0);
  const Real mean = warp_sum(sum) / static_cast<Real>(experts);
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i) {
    xhat[i] = expert_of(i) < experts ? z[i] - mean : Real(0);
    squares += xhat[i] * xhat[i];
  }
  const Real variance = warp_sum(squares) / static_cast<Real>(experts);
  const Real inverse_sigma = 1 / std::sqrt(variance + static_cast<Real>(kVarianceEpsilon));
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i) xhat[i] *= inverse_sigma;
  return inverse_sigma;
}

// Reads a row of logits and computes the token's probabilities.
template <typename Scalar, int kPerLane, typename Real>
__device__ void load_token(const Scalar* logits_E, int experts, const RouteRule& rule, Real theta,
                           RouteToken<Real, kPerLane>& token) {
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i)
    token.z[i] = expert_of(i) < experts ? static_cast<Real>(load(logits_E[expert_of(i)])) : Real(0);
  token.inverse_sigma = rule.normalize ? normalize(token.z, experts, token.xhat) : Real(1);
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i) token.s[i] = rule.normalize ? theta * token.xhat[i] : token.z[i];
  const Exponentials<Real> state = exponentials(token.s, experts, token.p);
  token.lse = state.lse();
  token.sum = state.sum;
  const Real inverse = 1 / state.sum;
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i) token.p[i] *= inverse;
}

// Returns the sum of the block's warps, in the order of warps. scratch: one number per warp.
__device__ inline double sum_of_warps(double value, double* scratch) {
  if (lane_index() == 0) scratch[warp_index()] = value;
  __syncthreads();
  double sum = scratch[0];
  for (int warp = 1; warp < kRouteWarps; ++warp) sum += scratch[warp];
  __syncthreads();
  return sum;
}

// Returns the sum of `count` numbers, in a fixed order, to all threads of the block.
__device__ inline double sum_of_blocks(const double* numbers, int64_t count, double* scratch) {
  double sum = 0;
  for (int64_t n = threadIdx.x; n < count; n += blockDim.x) sum += numbers[n];
  return block_sum(sum, scratch);
}

// Calls `body` with the smallest compile-time number of experts per lane that holds all experts.
template <typename Body>
void dispatch_per_lane(int64_t experts, const Body& body) {
  if (experts <= 1 * kWarp) return body(std::integral_constant<int, 1>());
  if (experts <= 2 * kWarp) return body(std::integral_constant<int, 2>());
  if (experts <= 4 * kWarp) return body(std::integral_constant<int, 4>());
  if (experts <= 8 * kWarp) return body(std::integral_constant<int, 8>());
  if (experts <= 16 * kWarp) return body(std::integral_constant<int, 16>());
  if (experts <= 32 * kWarp) return body(std::integral_constant<int, 32>());
  return body(std::integral_constant<int, kMostExperts / kWarp>());
}

}  // namespace dtopp::ops::cuda
