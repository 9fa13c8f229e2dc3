#include "dtopp/ops/route/route_cpu.h"

#include <numeric>

namespace dtopp::ops {
namespace {

// Returns the first index of the largest number in `left`.
template <typename Real>
[[gnu::always_inline]] inline int32_t likeliest(const Real* left, int32_t experts) {
  Real highest = left[0];
#pragma omp simd reduction(max : highest)
  for (int32_t e = 0; e < experts; ++e) highest = left[e] > highest ? left[e] : highest;
  int32_t first = experts;
#pragma omp simd reduction(min : first)
  for (int32_t e = 0; e < experts; ++e) {
    const int32_t candidate = left[e] == highest ? e : experts;
    first = candidate < first ? candidate : first;
  }
  return first;
}

// Replaces a selection by equally many experts with the largest biased score. Returns the sum of their
// probabilities. `bias` is that of kernel_bias().
template <typename Real>
[[gnu::always_inline]] inline double select_biased(const TokenBuffers<Real>& buffers, int64_t experts,
                                                   const RouteRule& rule, const Real* bias, int64_t count,
                                                   Real* left, int32_t* chosen) {
  constexpr Real kLowest = std::numeric_limits<Real>::lowest();
  const Real *p = buffers.p.data(), *s = buffers.s.data();
#pragma omp simd
  for (int64_t e = 0; e < experts; ++e) {
    const Real score = rule.bias_on == BiasOn::kLogit ? p[e] * bias[e] : fast_exp(s[e]) + bias[e];
    left[e] = score > kLowest ? score : kLowest;  // NaN has no order
  }
  double sum = 0;
  for (int64_t n = 0; n < count; ++n) {
    chosen[n] = likeliest(left, static_cast<int32_t>(experts));
    left[chosen[n]] = -std::numeric_limits<Real>::infinity();
    sum += p[chosen[n]];
  }
  return sum;
}

// Writes the selected experts to `chosen`, the likeliest first, and returns their number. `sum` is their
// probability, added up in double in this order; the threshold is compared with the same sum. `left` is
// scratch memory.
template <typename Real>
[[gnu::always_inline]] inline int64_t select_experts(const Real* p, int64_t experts, bool finite,
                                                     const RouteRule& rule, double threshold, Real* left,
                                                     int32_t* chosen, double* sum) {
  if (!finite) {  // NaNs have no order: select by index; training then reports NaN gates instead of crashing
    const int64_t count = rule.by_threshold ? 1 : rule.most;
    std::iota(chosen, chosen + count, 0);
    *sum = std::numeric_limits<double>::quiet_NaN();
    return count;
  }
  *sum = 0;
  if (!rule.by_threshold && rule.bias_on != BiasOn::kNothing) return rule.most;  // select_biased() selects
  std::copy(p, p + experts, left);
  int64_t count = 0;
  double before = 0;
  while (count < rule.most && (!rule.by_threshold || count == 0 || before < threshold)) {
    const int32_t next = likeliest(left, static_cast<int32_t>(experts));
    left[next] = -1;
    before += p[next];
    chosen[count++] = next;
  }
  *sum = before;
  return count;
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
                                               const RouteRule& rule, double threshold, Real theta,
                                               const Real* bias, Real* gates, TokenBuffers<Real>& buffers,
                                               ChunkSums& sums) {
  for (int64_t t = 0; t < tokens; ++t) {
    const Real* z = logits + t * experts;
    Real* gates_E = gates + t * experts;
    const Real* p = buffers.p.data();
    Real inverse_sigma = 1;
    const auto state = probabilities(z, experts, rule, theta, buffers, &inverse_sigma);
    double chosen_sum = 0;
    const int64_t count = select_experts(p, experts, state.finite(), rule, threshold, buffers.work.data(),
                                         buffers.chosen.data(), &chosen_sum);
    if (bias != nullptr && state.finite())
      chosen_sum =
          select_biased(buffers, experts, rule, bias, count, buffers.work.data(), buffers.chosen.data());
    const double divisor = rule.renormalize ? chosen_sum : 1;
    std::fill(gates_E, gates_E + experts, Real(0));
    for (int64_t n = 0; n < count; ++n) {
      const int32_t e = buffers.chosen[n];
      gates_E[e] = static_cast<Real>(p[e] / divisor);
      ++sums.counts_E[e];
    }
    ++sums.histogram[count];
    double* prob_E = sums.prob_E.data();
#pragma omp simd
    for (int64_t e = 0; e < experts; ++e) prob_E[e] += p[e];
    sums.entropy += entropy_of(buffers.s.data(), p, state.lse(), experts);
    const double lse = rule.normalize ? exponentials(z, experts, buffers.work.data()).lse() : state.lse();
    sums.router_z += lse * lse;
  }
}

template <typename Real>
std::vector<ChunkSums> route_chunks(const at::Tensor& logits_TE, Real theta, const RouteRule& rule,
                                    double threshold, const at::Tensor& bias_E, at::Tensor& gates_TE) {
  const int64_t tokens = logits_TE.size(0), experts = logits_TE.size(1);
  const int64_t chunks = (tokens + kTokensPerChunk - 1) / kTokensPerChunk;
  const Real* logits = logits_TE.const_data_ptr<Real>();
  const Real* bias = bias_E.defined() ? bias_E.const_data_ptr<Real>() : nullptr;
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
        route_chunk(logits + first * experts, count, experts, rule, threshold, theta, bias,
                    gates + first * experts, buffers, sums[c]);
      });
    }
  });
  return sums;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> route_cpu(
    const at::Tensor& logits_TE, const at::Tensor& scale, const at::Tensor& threshold,
    c10::string_view normalization, int64_t top_k, int64_t max_experts, bool renormalize,
    const std::optional<at::Tensor>& bias_E, c10::string_view bias_on) {
  check_route(logits_TE, scale, threshold, normalization, top_k, max_experts, bias_E, bias_on);
  const double p = threshold.item<double>();
  TORCH_CHECK(top_k > 0 || !std::isnan(p), "route: expected a threshold between 0 and 1, got ", p);
  const int64_t tokens = logits_TE.size(0), experts = logits_TE.size(1);
  RouteRule rule = route_rule(normalization, experts, top_k, max_experts, renormalize);
  rule.bias_on = bias_on_of(bias_E, bias_on);
  const auto dtype = accumulator_type(logits_TE);
  const auto real = logits_TE.options().dtype(dtype);
  at::Tensor gates_TE = at::empty({tokens, experts}, real);
  at::Tensor counts_E = at::zeros({experts}, real.dtype(at::kLong));
  at::Tensor histogram = at::zeros({experts + 1}, real.dtype(at::kLong));
  at::Tensor prob_E = at::zeros({experts}, real.dtype(at::kDouble));
  const at::Tensor z_TE = logits_TE.to(dtype).contiguous();
  std::vector<ChunkSums> chunks;
  AT_DISPATCH_FLOATING_TYPES(dtype, "route", [&] {
    const auto theta = rule.learn_scale ? scale.item<scalar_t>() : scalar_t(1);
    chunks = route_chunks<scalar_t>(z_TE, theta, rule, p, kernel_bias(bias_E, bias_on), gates_TE);
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

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CPU, m) { m.impl("route", route_cpu); }

}  // namespace dtopp::ops
