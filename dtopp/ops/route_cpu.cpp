#include <limits>
#include <numeric>

#include "dtopp/ops/route_kernel.h"
#include "dtopp/ops/simd.h"

namespace dtopp {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// Sums over tokens are formed per chunk, then over chunks in order: the same bits for any number of threads.
constexpr int64_t kTokensPerChunk = 128;
constexpr double kVarianceEpsilon = 1e-6;

struct RouteOptions {
  bool normalize;    // fixed or dynamic
  bool learn_scale;  // dynamic
  bool renormalize;
  int64_t top_k;
  int64_t max_experts;
  double threshold;
};

RouteOptions parse_options(c10::string_view normalization, int64_t top_k, int64_t max_experts,
                           bool renormalize, double threshold) {
  const bool learn_scale = normalization == "dynamic";
  return {learn_scale || normalization == "fixed", learn_scale, renormalize, top_k, max_experts, threshold};
}

template <typename Real>
struct Softmax {
  Real lse;
  bool finite;
};

// p = softmax(s). With a NaN, or nothing above -inf, every p is NaN.
template <typename Real>
[[gnu::always_inline]] inline Softmax<Real> softmax(const Real* s, int64_t experts, Real* p) {
  Real highest = -std::numeric_limits<Real>::infinity();
#pragma omp simd reduction(max : highest)
  for (int64_t e = 0; e < experts; ++e) highest = s[e] > highest ? s[e] : highest;
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t e = 0; e < experts; ++e) {
    p[e] = fast_exp(s[e] - highest);
    sum += p[e];
  }
  const Real inverse = 1 / sum;
#pragma omp simd
  for (int64_t e = 0; e < experts; ++e) p[e] *= inverse;
  return {highest + std::log(sum), std::isfinite(sum)};
}

// xhat = (z - mean) / sigma; returns 1 / sigma.
template <typename Real>
[[gnu::always_inline]] inline Real normalize(const Real* z, int64_t experts, Real* xhat) {
  Real mean = 0;
#pragma omp simd reduction(+ : mean)
  for (int64_t e = 0; e < experts; ++e) mean += z[e];
  mean /= static_cast<Real>(experts);
  Real variance = 0;
#pragma omp simd reduction(+ : variance)
  for (int64_t e = 0; e < experts; ++e) variance += (z[e] - mean) * (z[e] - mean);
  variance /= static_cast<Real>(experts);
  const Real inverse_sigma = 1 / std::sqrt(variance + static_cast<Real>(kVarianceEpsilon));
#pragma omp simd
  for (int64_t e = 0; e < experts; ++e) xhat[e] = (z[e] - mean) * inverse_sigma;
  return inverse_sigma;
}

// The buffers of one chunk, reused from token to token.
template <typename Real>
struct TokenBuffers {
  explicit TokenBuffers(int64_t experts)
      : xhat(experts), s(experts), p(experts), work(experts), order(experts) {}
  std::vector<Real> xhat, s, p, work;
  std::vector<int32_t> order;
};

// From logits to probabilities: fills buffers.xhat (when normalised), s and p.
template <typename Real>
[[gnu::always_inline]] inline Softmax<Real> probabilities(const Real* z, int64_t experts,
                                                          const RouteOptions& options, Real theta,
                                                          TokenBuffers<Real>& buffers, Real* inverse_sigma) {
  if (!options.normalize) {
    std::copy(z, z + experts, buffers.s.data());
  } else {
    *inverse_sigma = normalize(z, experts, buffers.xhat.data());
    Real* s = buffers.s.data();
    const Real* xhat = buffers.xhat.data();
#pragma omp simd
    for (int64_t e = 0; e < experts; ++e) s[e] = theta * xhat[e];
  }
  return softmax(buffers.s.data(), experts, buffers.p.data());
}

// Moves the chosen experts, likeliest first, to the end of order and returns how many there are; sum is their
// probability, added up in double in that order, which is also what the threshold is compared with.
template <typename Real>
[[gnu::always_inline]] inline int64_t select_experts(const Real* p, int64_t experts, bool finite,
                                                     const RouteOptions& options, int32_t* order,
                                                     double* sum) {
  int64_t limit = options.max_experts > 0 ? std::min(options.max_experts, experts) : experts;
  if (options.top_k > 0) limit = std::min(limit, options.top_k);
  std::iota(order, order + experts, 0);
  if (!finite) {  // NaNs have no order: by index, so that training sees NaN gates rather than a crash
    const int64_t chosen = options.top_k > 0 ? limit : 1;
    std::reverse(order, order + experts);
    *sum = std::numeric_limits<double>::quiet_NaN();
    return chosen;
  }
  const auto less_likely = [p](int32_t a, int32_t b) { return p[a] < p[b] || (p[a] == p[b] && a > b); };
  std::make_heap(order, order + experts, less_likely);
  int64_t chosen = 0;
  double before = 0;
  while (chosen < limit) {
    if (options.top_k == 0 && chosen > 0 && !(before < options.threshold)) break;
    std::pop_heap(order, order + experts - chosen, less_likely);
    ++chosen;
    before += p[order[experts - chosen]];
  }
  *sum = before;
  return chosen;
}

template <typename Real>
[[gnu::always_inline]] inline double entropy_of(const Real* s, const Real* p, Real lse, int64_t experts) {
  Real entropy = 0;
#pragma omp simd reduction(+ : entropy)
  for (int64_t e = 0; e < experts; ++e) entropy += p[e] == 0 ? Real(0) : p[e] * (lse - s[e]);
  return entropy;
}

// Sums over the tokens of one chunk.
struct ChunkSums {
  std::vector<double> prob_E;
  std::vector<int64_t> counts_E, histogram;
  double entropy = 0, router_z = 0;
};

template <typename Real>
[[gnu::always_inline]] inline void route_chunk(const Real* logits, int64_t tokens, int64_t experts,
                                               const RouteOptions& options, Real theta, Real* gates,
                                               TokenBuffers<Real>& buffers, ChunkSums& sums) {
  for (int64_t t = 0; t < tokens; ++t) {
    const Real* z = logits + t * experts;
    Real* gates_E = gates + t * experts;
    const Real* p = buffers.p.data();
    Real inverse_sigma = 1;
    const auto state = probabilities(z, experts, options, theta, buffers, &inverse_sigma);
    double sum = 0;
    const int64_t chosen = select_experts(p, experts, state.finite, options, buffers.order.data(), &sum);
    std::fill(gates_E, gates_E + experts, Real(0));
    for (int64_t n = 0; n < chosen; ++n) {
      const int32_t e = buffers.order[experts - 1 - n];
      gates_E[e] = options.renormalize ? static_cast<Real>(p[e] / sum) : p[e];
      ++sums.counts_E[e];
    }
    ++sums.histogram[chosen];
    double* prob_E = sums.prob_E.data();
#pragma omp simd
    for (int64_t e = 0; e < experts; ++e) prob_E[e] += p[e];
    sums.entropy += entropy_of(buffers.s.data(), p, state.lse, experts);
    const double lse = options.normalize ? softmax(z, experts, buffers.work.data()).lse : state.lse;
    sums.router_z += lse * lse;
  }
}

template <typename Real>
std::vector<ChunkSums> route_chunks(const at::Tensor& logits_TE, Real theta, const RouteOptions& options,
                                    at::Tensor& gates_TE) {
  const int64_t tokens = logits_TE.size(0), experts = logits_TE.size(1);
  const int64_t chunks = (tokens + kTokensPerChunk - 1) / kTokensPerChunk;
  const Real* logits = logits_TE.const_data_ptr<Real>();
  Real* gates = gates_TE.mutable_data_ptr<Real>();
  std::vector<ChunkSums> sums(chunks);
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    TokenBuffers<Real> buffers(experts);
    for (int64_t c = begin; c < end; ++c) {
      sums[c].prob_E.resize(experts);
      sums[c].counts_E.resize(experts);
      sums[c].histogram.resize(experts + 1);
      const int64_t first = c * kTokensPerChunk;
      const int64_t count = std::min(kTokensPerChunk, tokens - first);
      run_widest([&] {
        route_chunk(logits + first * experts, count, experts, options, theta, gates + first * experts,
                    buffers, sums[c]);
      });
    }
  });
  return sums;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> route_cpu(
    const at::Tensor& logits_TE, const at::Tensor& scale, const at::Tensor& threshold,
    c10::string_view normalization, int64_t top_k, int64_t max_experts, bool renormalize) {
  check_route(logits_TE, scale, threshold, normalization, top_k, max_experts);
  const double p = threshold.item<double>();
  TORCH_CHECK(top_k > 0 || !std::isnan(p), "route: expected a threshold between 0 and 1, got ", p);
  const RouteOptions options = parse_options(normalization, top_k, max_experts, renormalize, p);
  const int64_t tokens = logits_TE.size(0), experts = logits_TE.size(1);
  const auto dtype = route_dtype(logits_TE);
  const auto real = logits_TE.options().dtype(dtype);
  at::Tensor gates_TE = at::empty({tokens, experts}, real);
  at::Tensor counts_E = at::zeros({experts}, real.dtype(at::kLong));
  at::Tensor histogram = at::zeros({experts + 1}, real.dtype(at::kLong));
  at::Tensor prob_E = at::zeros({experts}, real.dtype(at::kDouble));
  const at::Tensor z_TE = logits_TE.to(dtype).contiguous();
  std::vector<ChunkSums> chunks;
  AT_DISPATCH_FLOATING_TYPES(dtype, "route", [&] {
    const auto theta = options.learn_scale ? scale.item<scalar_t>() : scalar_t(1);
    chunks = route_chunks<scalar_t>(z_TE, theta, options, gates_TE);
  });
  double entropy = 0, router_z = 0;
  for (const ChunkSums& chunk : chunks) {
    for (int64_t e = 0; e < experts; ++e) {
      prob_E.mutable_data_ptr<double>()[e] += chunk.prob_E[e];
      counts_E.mutable_data_ptr<int64_t>()[e] += chunk.counts_E[e];
    }
    for (int64_t n = 0; n <= experts; ++n) histogram.mutable_data_ptr<int64_t>()[n] += chunk.histogram[n];
    entropy += chunk.entropy;
    router_z += chunk.router_z;
  }
  const double count = static_cast<double>(std::max<int64_t>(tokens, 1));
  return {gates_TE,
          counts_E,
          histogram,
          prob_E.div_(count).to(dtype),
          at::scalar_tensor(entropy / count, real),
          at::scalar_tensor(router_z / count, real)};
}

// Everything the backward pass of a chunk reads besides logits and gates.
template <typename Real>
struct GradientSources {
  const Real* gates_TE;     // null: nothing depends on the gates
  const Real* mean_prob_E;  // already divided by the number of tokens, as are the next two; never null
  Real entropy;
  Real router_z;
};

// ds into buffers.work from d gates, d mean_prob and d entropy, through renormalisation and softmax.
template <typename Real>
[[gnu::always_inline]] inline void softmax_backward(const Real* gates_E, const Real* grad_gates_E,
                                                    const GradientSources<Real>& grad, Real lse,
                                                    int64_t experts, const RouteOptions& options,
                                                    TokenBuffers<Real>& buffers) {
  const Real* p = buffers.p.data();
  const Real* s = buffers.s.data();
  Real* dp = buffers.work.data();
  std::copy(grad.mean_prob_E, grad.mean_prob_E + experts, dp);
  if (grad_gates_E != nullptr) {
    Real chosen_prob = 0, weighted = 0;
#pragma omp simd reduction(+ : chosen_prob, weighted)
    for (int64_t e = 0; e < experts; ++e) {
      const bool chosen = gates_E[e] != 0;
      chosen_prob += chosen ? p[e] : Real(0);
      weighted += chosen ? gates_E[e] * grad_gates_E[e] : Real(0);
    }
    const Real inverse = options.renormalize ? 1 / chosen_prob : Real(1);
    const Real shift = options.renormalize ? weighted : Real(0);
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

// dz of one token from ds in buffers.work, through the normalisation; returns its d theta.
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

// Returns d theta, summed over the chunk's tokens.
template <typename Real>
[[gnu::always_inline]] inline double route_backward_chunk(const Real* logits, const Real* gates,
                                                          const Real* grad_gates, int64_t tokens,
                                                          int64_t experts, const GradientSources<Real>& grad,
                                                          const RouteOptions& options, Real theta,
                                                          TokenBuffers<Real>& buffers, Real* grad_logits) {
  double grad_theta = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t row = t * experts;
    Real* dz = grad_logits + row;
    Real inverse_sigma = 1;
    const auto state = probabilities(logits + row, experts, options, theta, buffers, &inverse_sigma);
    softmax_backward(gates + row, grad_gates == nullptr ? nullptr : grad_gates + row, grad, state.lse,
                     experts, options, buffers);
    if (options.normalize) {
      grad_theta += normalize_backward(buffers, theta, inverse_sigma, experts, dz);
    } else {
      std::copy(buffers.work.begin(), buffers.work.end(), dz);
    }
    if (grad.router_z == 0) continue;
    const Real factor = 2 * softmax(logits + row, experts, buffers.p.data()).lse * grad.router_z;
    const Real* p = buffers.p.data();
#pragma omp simd
    for (int64_t e = 0; e < experts; ++e) dz[e] += factor * p[e];
  }
  return grad_theta;
}

template <typename Real>
double route_backward_chunks(const at::Tensor& logits_TE, const at::Tensor& gates_TE, Real theta,
                             const GradientSources<Real>& grad, const RouteOptions& options,
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
      run_widest([&] {
        grad_theta[c] = route_backward_chunk(logits + row, gates + row, grad_gates, count, experts, grad,
                                             options, theta, buffers, grad_logits + row);
      });
    }
  });
  return std::accumulate(grad_theta.begin(), grad_theta.end(), 0.0);
}

std::tuple<at::Tensor, at::Tensor> route_backward_cpu(const at::Tensor& logits_TE, const at::Tensor& scale,
                                                      const at::Tensor& gates_TE,
                                                      const OptionalTensor& grad_gates_TE,
                                                      const OptionalTensor& grad_mean_prob_E,
                                                      const OptionalTensor& grad_entropy,
                                                      const OptionalTensor& grad_router_z,
                                                      c10::string_view normalization, bool renormalize) {
  const RouteOptions options = parse_options(normalization, 0, 0, renormalize, 0);
  const auto dtype = route_dtype(logits_TE);
  const double count = static_cast<double>(std::max<int64_t>(logits_TE.size(0), 1));
  const at::Tensor z_TE = logits_TE.to(dtype).contiguous();
  const at::Tensor gates = gates_TE.contiguous();
  const at::Tensor grad_gates = grad_gates_TE ? grad_gates_TE->contiguous() : at::Tensor();
  const at::Tensor grad_prob_E = grad_mean_prob_E ? grad_mean_prob_E->div(count).contiguous()
                                                  : at::zeros({logits_TE.size(1)}, z_TE.options());
  at::Tensor grad_logits_TE = at::empty_like(z_TE);
  double grad_scale = 0;
  AT_DISPATCH_FLOATING_TYPES(dtype, "route_backward", [&] {
    const GradientSources<scalar_t> grad{
        grad_gates.defined() ? grad_gates.const_data_ptr<scalar_t>() : nullptr,
        grad_prob_E.const_data_ptr<scalar_t>(),
        grad_entropy ? static_cast<scalar_t>(grad_entropy->item<double>() / count) : scalar_t(0),
        grad_router_z ? static_cast<scalar_t>(grad_router_z->item<double>() / count) : scalar_t(0)};
    const auto theta = options.learn_scale ? scale.item<scalar_t>() : scalar_t(1);
    grad_scale = route_backward_chunks<scalar_t>(z_TE, gates, theta, grad, options, grad_logits_TE);
  });
  return {grad_logits_TE.to(logits_TE.scalar_type()),
          at::scalar_tensor(options.learn_scale ? grad_scale : 0.0, scale.options())};
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CPU, m) {
  m.impl("route", route_cpu);
  m.impl("route_backward", route_backward_cpu);
}

}  // namespace dtopp
