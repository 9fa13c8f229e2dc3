// Backward: one warp per token, which recomputes the token's probabilities. The gradients of the gates
// (through the renormalization), of the mean probabilities and of the entropy give dP. The softmax turns dP
// into ds, and the normalization turns ds into dz and d theta. The gradient of router z, the squared
// logsumexp of the raw logits, is added to dz.
//
// d theta is summed in double in a fixed order: over the tokens of a warp, the warps of a block, then the
// blocks.
#include "dtopp/ops/route/route_token_cuda.h"

namespace dtopp::ops::cuda {
namespace {

// Gradients of the means, divided by the number of tokens.
template <typename Real>
struct MeanGradients {
  const Real* prob_E;
  Real tokens, entropy, router_z;

  template <typename Scalar>
  __device__ explicit MeanGradients(const RouteBackward<Scalar>& in)
      : prob_E(in.grad_mean_prob_E),
        tokens(static_cast<Real>(in.tokens)),
        entropy(in.grad_entropy == nullptr ? Real(0) : *in.grad_entropy / tokens),
        router_z(in.grad_router_z == nullptr ? Real(0) : *in.grad_router_z / tokens) {}

  __device__ Real prob(int e) const { return prob_E == nullptr ? Real(0) : prob_E[e] / tokens; }
};

// Adds the gradients of the gates, through the renormalization, to dp.
template <typename Real, int kPerLane>
__device__ void add_gate_gradients(const Real* gates_E, const Real* grad_gates_E, bool renormalize,
                                   int experts, const RouteToken<Real, kPerLane>& token,
                                   Real (&dp)[kPerLane]) {
  Real gates[kPerLane], grad[kPerLane], chosen_prob = 0, weighted = 0;
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i) {
    const int e = expert_of(i);
    gates[i] = e < experts ? gates_E[e] : Real(0);
    grad[i] = gates[i] != 0 ? grad_gates_E[e] : Real(0);
    chosen_prob += gates[i] != 0 ? token.p[i] : Real(0);
    weighted += gates[i] != 0 ? gates[i] * grad[i] : Real(0);
  }
  const Real inverse = renormalize ? 1 / warp_sum(chosen_prob) : Real(1);
  const Real shift = renormalize ? warp_sum(weighted) : Real(0);
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i) dp[i] += gates[i] != 0 ? (grad[i] - shift) * inverse : Real(0);
}

// The gradient of a gate that is the logit or its sigmoid, with relu also that of the gates' mean.
template <typename Real>
__device__ Real own_gate_gradient(Real gate, const Real* grad_gates_E, Real grad_mean, Gate kind, int e) {
  if (!(gate != 0)) return 0;
  const Real grad = grad_gates_E == nullptr ? Real(0) : grad_gates_E[e];
  return kind == Gate::kRelu ? grad + grad_mean : grad * gate * (1 - gate);
}

// Adds the entropy's gradient to dp, then replaces dp by ds.
template <typename Real, int kPerLane>
__device__ void softmax_backward(const RouteToken<Real, kPerLane>& token, Real grad_entropy,
                                 Real (&dp)[kPerLane]) {
  Real mean = 0;
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i) {
    // d(-P log P) = -log P - 1; the 1 cancels below
    dp[i] += grad_entropy * (token.p[i] == 0 ? Real(0) : token.lse - token.s[i]);
    mean += token.p[i] * dp[i];
  }
  mean = warp_sum(mean);
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i) dp[i] = token.p[i] * (dp[i] - mean);
}

// Replaces ds by dz. Returns d theta.
template <typename Real, int kPerLane>
__device__ Real normalize_backward(const RouteToken<Real, kPerLane>& token, Real theta, int experts,
                                   Real (&ds)[kPerLane]) {
  Real sum = 0, product = 0;
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i) {
    sum += ds[i];
    product += ds[i] * token.xhat[i];
  }
  sum = warp_sum(sum);
  product = warp_sum(product);
  const Real mean = sum / static_cast<Real>(experts), projection = product / static_cast<Real>(experts);
  const Real factor = theta * token.inverse_sigma;
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i) ds[i] = factor * (ds[i] - mean - token.xhat[i] * projection);
  return product;
}

// Returns d theta of the token.
template <typename Scalar, int kPerLane>
__device__ double token_backward(const RouteBackward<Scalar>& in, int64_t t,
                                 const MeanGradients<Accumulator<Scalar>>& mean, Accumulator<Scalar> theta) {
  using Real = Accumulator<Scalar>;
  const int experts = static_cast<int>(in.experts);
  const int64_t row = t * in.experts;
  RouteToken<Real, kPerLane> token{};  // xhat stays 0 without normalization
  load_token(in.logits_TE + row, experts, in.rule, theta, token);
  const Real* grad_gates_E = in.grad_gates_TE == nullptr ? nullptr : in.grad_gates_TE + row;
  const bool of_prob = in.rule.gate != Gate::kRelu;  // whether the means are those of P
  Real gradient[kPerLane];
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i)
    gradient[i] = of_prob && expert_of(i) < experts ? mean.prob(expert_of(i)) : Real(0);
  if (grad_gates_E != nullptr && in.rule.gate == Gate::kProbability)
    add_gate_gradients(in.gates_TE + row, grad_gates_E, in.rule.renormalize, experts, token, gradient);
  Real grad_theta = 0;
  if (in.rule.gate == Gate::kProbability || mean.entropy != 0 || (of_prob && mean.prob_E != nullptr)) {
    softmax_backward(token, mean.entropy, gradient);
    if (in.rule.normalize) grad_theta = normalize_backward(token, theta, experts, gradient);
  }
  if (in.rule.gate != Gate::kProbability) {
#pragma unroll unrolled(kPerLane)
    for (int i = 0; i < kPerLane; ++i) {
      const int e = expert_of(i);
      if (e < experts)
        gradient[i] += own_gate_gradient(in.gates_TE[row + e], grad_gates_E, mean.prob(e), in.rule.gate, e);
    }
  }
  if (mean.router_z != 0) {
    const Exponentials<Real> raw = exponentials(token.z, experts, token.p);
    const Real factor = 2 * raw.lse() * mean.router_z / raw.sum;
#pragma unroll unrolled(kPerLane)
    for (int i = 0; i < kPerLane; ++i) gradient[i] += factor * token.p[i];
  }
#pragma unroll unrolled(kPerLane)
  for (int i = 0; i < kPerLane; ++i)
    if (expert_of(i) < experts) store(in.grad_logits_TE + row + expert_of(i), gradient[i]);
  return grad_theta;
}

template <typename Scalar, int kPerLane>
__global__ void __launch_bounds__(kRouteThreads) route_backward_kernel(RouteBackward<Scalar> in) {
  using Real = Accumulator<Scalar>;
  const MeanGradients<Real> mean(in);
  const Real theta = in.rule.learn_scale ? *in.scale : Real(1);
  double grad_theta = 0;
  const int64_t first = blockIdx.x * kTokensPerBlock + warp_index() * kTokensPerWarp;
  for (int64_t t = first; t < first + kTokensPerWarp && t < in.tokens; ++t)
    grad_theta += token_backward<Scalar, kPerLane>(in, t, mean, theta);
  grad_theta = sum_of_warps(grad_theta, reinterpret_cast<double*>(shared_memory()));
  if (threadIdx.x == 0) in.sums[blockIdx.x] = grad_theta;
}

template <typename Scalar>
__global__ void __launch_bounds__(kRouteThreads) grad_scale_kernel(RouteBackward<Scalar> in, int64_t blocks) {
  const double sum = sum_of_blocks(in.sums, blocks, reinterpret_cast<double*>(shared_memory()));
  if (threadIdx.x == 0) *in.grad_scale = static_cast<Accumulator<Scalar>>(in.rule.learn_scale ? sum : 0);
}

}  // namespace

template <typename Scalar>
void route_backward(const RouteBackward<Scalar>& route, Stream stream) {
  const int64_t blocks = route_blocks(route.tokens);
  const size_t scratch = kRouteWarps * sizeof(double);
  dispatch_per_lane(route.experts, [&](auto per_lane) {
    launch({"route", stream, blocks, kRouteThreads, scratch}, route_backward_kernel<Scalar, per_lane()>,
           route);
  });
  launch({"route", stream, 1, kRouteThreads, scratch}, grad_scale_kernel<Scalar>, route, blocks);
}

template void route_backward(const RouteBackward<float>&, Stream);
template void route_backward(const RouteBackward<double>&, Stream);
template void route_backward(const RouteBackward<Bfloat16>&, Stream);

}  // namespace dtopp::ops::cuda
