#include <numeric>

#include "dtopp/ops/route/route_cpu.h"

namespace dtopp::ops {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// Gradients that the backward pass of a chunk reads.
template <typename Real>
struct GradientSources {
  const Real* gates_TE;     // null if nothing depends on the gates
  const Real* mean_prob_E;  // divided by the number of tokens, like the next two; never null
  Real entropy;
  Real router_z;
  bool needs_prob;  // whether any gradient passes through P
};

// Writes ds to buffers.work, from the gradients of gates, mean_prob and entropy, through renormalization and
// softmax.
template <typename Real>
[[gnu::always_inline]] inline void softmax_backward(const Real* gates_E, const Real* grad_gates_E,
                                                    const GradientSources<Real>& grad, Real lse,
                                                    int64_t experts, const RouteRule& rule,
                                                    TokenBuffers<Real>& buffers) {
  const Real* p = buffers.p.data();
  const Real* s = buffers.s.data();
  Real* dp = buffers.work.data();
  if (rule.gate == Gate::kRelu) {
    std::fill(dp, dp + experts, Real(0));
  } else {
    std::copy(grad.mean_prob_E, grad.mean_prob_E + experts, dp);
  }
  if (grad_gates_E != nullptr && rule.gate == Gate::kProbability) {
    Real chosen_prob = 0, weighted = 0;
#pragma omp simd reduction(+ : chosen_prob, weighted)
    for (int64_t e = 0; e < experts; ++e) {
      const bool chosen = gates_E[e] != 0;
      chosen_prob += chosen ? p[e] : Real(0);
      weighted += chosen ? gates_E[e] * grad_gates_E[e] : Real(0);
    }
    const Real inverse = rule.renormalize ? 1 / chosen_prob : Real(1);
    const Real shift = rule.renormalize ? weighted : Real(0);
#pragma omp simd
    for (int64_t e = 0; e < experts; ++e) {
      dp[e] += gates_E[e] != 0 ? (grad_gates_E[e] - shift) * inverse : Real(0);
    }
  }
  Real mean = 0;
#pragma omp simd reduction(+ : mean)
  for (int64_t e = 0; e < experts; ++e) {
    dp[e] +=
        grad.entropy * (p[e] == 0 ? Real(0) : lse - s[e]);  // d(-P log P) = -log P - 1; the 1 cancels below
    mean += p[e] * dp[e];
  }
#pragma omp simd
  for (int64_t e = 0; e < experts; ++e) dp[e] = p[e] * (dp[e] - mean);
}

// Writes dz of one token, from ds in buffers.work, through the normalization. Returns the token's d theta.
template <typename Real>
[[gnu::always_inline]] inline double normalize_backward(const TokenBuffers<Real>& buffers, Real theta,
                                                        Real inverse_sigma, int64_t experts, Real* dz) {
  const Real* ds = buffers.work.data();
  const Real* xhat = buffers.xhat.data();
  Real sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
  for (int64_t e = 0; e < experts; ++e) {
    sum += ds[e];
    product += ds[e] * xhat[e];
  }
  const Real mean = sum / static_cast<Real>(experts), projection = product / static_cast<Real>(experts);
  const Real factor = theta * inverse_sigma;
#pragma omp simd
  for (int64_t e = 0; e < experts; ++e) dz[e] = factor * (ds[e] - mean - xhat[e] * projection);
  return product;
}

// Adds the gradients of gates that are the logits or their sigmoids to dz, and with relu those of the gates'
// means.
template <typename Real>
[[gnu::always_inline]] inline void add_own_gates(const Real* gates_E, const Real* grad_gates_E,
                                                 const Real* grad_mean_E, Gate gate, int64_t experts,
                                                 Real* dz) {
  if (gate == Gate::kRelu) {
#pragma omp simd
    for (int64_t e = 0; e < experts; ++e) dz[e] += gates_E[e] != 0 ? grad_mean_E[e] : Real(0);
  }
  if (grad_gates_E == nullptr) return;
#pragma omp simd
  for (int64_t e = 0; e < experts; ++e) {
    const Real slope = gate == Gate::kRelu ? Real(1) : gates_E[e] * (1 - gates_E[e]);
    dz[e] += gates_E[e] != 0 ? grad_gates_E[e] * slope : Real(0);
  }
}

// Returns d theta, summed over the chunk's tokens.
template <typename Real>
[[gnu::always_inline]] inline double route_backward_chunk(const Real* logits, const Real* gates,
                                                          const Real* grad_gates, int64_t tokens,
                                                          int64_t experts, const GradientSources<Real>& grad,
                                                          const RouteRule& rule, Real theta,
                                                          TokenBuffers<Real>& buffers, Real* grad_logits) {
  double grad_theta = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t row = t * experts;
    Real* dz = grad_logits + row;
    const Real* grad_gates_E = grad_gates == nullptr ? nullptr : grad_gates + row;
    Exponentials<Real> state{};
    if (grad.needs_prob) {
      Real inverse_sigma = 1;
      state = probabilities(logits + row, experts, rule, theta, buffers, &inverse_sigma);
      softmax_backward(gates + row, grad_gates_E, grad, state.lse(), experts, rule, buffers);
      if (rule.normalize) {
        grad_theta += normalize_backward(buffers, theta, inverse_sigma, experts, dz);
      } else {
        std::copy(buffers.work.begin(), buffers.work.begin() + experts, dz);
      }
    } else {
      std::fill(dz, dz + experts, Real(0));
    }
    if (rule.gate != Gate::kProbability)
      add_own_gates(gates + row, grad_gates_E, grad.mean_prob_E, rule.gate, experts, dz);
    if (grad.router_z == 0) continue;
    if (rule.normalize || !grad.needs_prob) state = softmax(logits + row, experts, buffers.p.data());
    const Real factor = 2 * state.lse() * grad.router_z;
    const Real* p = buffers.p.data();
#pragma omp simd
    for (int64_t e = 0; e < experts; ++e) dz[e] += factor * p[e];
  }
  return grad_theta;
}

template <typename Real>
double route_backward_chunks(const at::Tensor& logits_TE, const at::Tensor& gates_TE, Real theta,
                             const GradientSources<Real>& grad, const RouteRule& rule,
                             at::Tensor& grad_logits_TE) {
  const int64_t tokens = logits_TE.size(0), experts = logits_TE.size(1);
  const int64_t chunks = (tokens + kTokensPerChunk - 1) / kTokensPerChunk;
  const Real* logits = logits_TE.const_data_ptr<Real>();
  const Real* gates = gates_TE.const_data_ptr<Real>();
  Real* grad_logits = grad_logits_TE.mutable_data_ptr<Real>();
  std::vector<double> grad_theta(chunks);
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    TokenBuffers<Real> buffers(experts);
    for (int64_t c = begin; c < end; ++c) {
      const int64_t first = c * kTokensPerChunk, row = first * experts;
      const int64_t count = std::min(kTokensPerChunk, tokens - first);
      const Real* grad_gates = grad.gates_TE == nullptr ? nullptr : grad.gates_TE + row;
      run_for_experts(experts, [&](auto known) {
        grad_theta[c] = route_backward_chunk(logits + row, gates + row, grad_gates, count, known, grad, rule,
                                             theta, buffers, grad_logits + row);
      });
    }
  });
  return std::accumulate(grad_theta.begin(), grad_theta.end(), 0.0);
}

std::tuple<at::Tensor, at::Tensor> route_backward_cpu(
    const at::Tensor& logits_TE, const at::Tensor& scale, const at::Tensor& gates_TE,
    const OptionalTensor& grad_gates_TE, const OptionalTensor& grad_mean_prob_E,
    const OptionalTensor& grad_entropy, const OptionalTensor& grad_router_z, c10::string_view normalization,
    bool renormalize, c10::string_view gate) {
  check_route_backward(logits_TE, scale, gates_TE,
                       {grad_gates_TE, grad_mean_prob_E, grad_entropy, grad_router_z}, normalization);
  RouteRule rule = route_rule(normalization, logits_TE.size(1), 0, 0, renormalize);
  rule.gate = gate_of(gate);
  const auto dtype = accumulator_type(logits_TE);
  const double count = static_cast<double>(std::max<int64_t>(logits_TE.size(0), 1));
  const at::Tensor z_TE = logits_TE.to(dtype).contiguous();
  const at::Tensor gates = gates_TE.contiguous();
  const at::Tensor grad_gates = grad_gates_TE ? grad_gates_TE->contiguous() : at::Tensor();
  const at::Tensor grad_prob_E = grad_mean_prob_E ? grad_mean_prob_E->div(count).contiguous()
                                                  : at::zeros({logits_TE.size(1)}, z_TE.options());
  at::Tensor grad_logits_TE = at::empty_like(z_TE);
  double grad_scale = 0;
  AT_DISPATCH_FLOATING_TYPES(dtype, "route_backward", [&] {
    const auto entropy =
        grad_entropy ? static_cast<scalar_t>(grad_entropy->item<double>() / count) : scalar_t(0);
    const GradientSources<scalar_t> grad{
        grad_gates.defined() ? grad_gates.const_data_ptr<scalar_t>() : nullptr,
        grad_prob_E.const_data_ptr<scalar_t>(), entropy,
        grad_router_z ? static_cast<scalar_t>(grad_router_z->item<double>() / count) : scalar_t(0),
        rule.gate == Gate::kProbability || entropy != 0 || (rule.gate == Gate::kSigmoid && grad_mean_prob_E)};
    const auto theta = rule.learn_scale ? scale.item<scalar_t>() : scalar_t(1);
    grad_scale = route_backward_chunks<scalar_t>(z_TE, gates, theta, grad, rule, grad_logits_TE);
  });
  return {grad_logits_TE.to(logits_TE.scalar_type()),
          at::scalar_tensor(rule.learn_scale ? grad_scale : 0.0, scale.options())};
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CPU, m) { m.impl("route_backward", route_backward_cpu); }

}  // namespace dtopp::ops
