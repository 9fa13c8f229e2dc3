// Normalization and softmax of one token's logits, shared by route's CPU forward and backward passes.
#pragma once

#include <limits>
#include <type_traits>
#include <vector>

#include "dtopp/ops/core/simd.h"
#include "dtopp/ops/route/route.h"

namespace dtopp::ops {

// Tokens per chunk. Sums over tokens are formed per chunk, then over chunks in order, so the bits do not
// depend on the number of threads.
constexpr int64_t kTokensPerChunk = 128;

template <typename Real>
struct Exponentials {
  Real highest, sum;

  Real lse() const { return highest + std::log(sum); }
  // False if s contains NaN or +inf, or only -inf. Every probability is NaN then.
  bool finite() const { return std::isfinite(sum); }
};

// out = exp(s - max s). Returns the maximum and the sum of `out`.
template <typename Real>
[[gnu::always_inline]] inline Exponentials<Real> exponentials(const Real* s, int64_t experts, Real* out) {
  Real highest = -std::numeric_limits<Real>::infinity();
#pragma omp simd reduction(max : highest)
  for (int64_t e = 0; e < experts; ++e) highest = s[e] > highest ? s[e] : highest;
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t e = 0; e < experts; ++e) {
    out[e] = fast_exp(s[e] - highest);
    sum += out[e];
  }
  return {highest, sum};
}

// p = softmax(s).
template <typename Real>
[[gnu::always_inline]] inline Exponentials<Real> softmax(const Real* s, int64_t experts, Real* p) {
  const Exponentials<Real> state = exponentials(s, experts, p);
  const Real inverse = 1 / state.sum;
#pragma omp simd
  for (int64_t e = 0; e < experts; ++e) p[e] *= inverse;
  return state;
}

// xhat = (z - mean) / sigma. Returns 1 / sigma.
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

// Calls `body` with the number of experts, compiled for the widest vector instructions. 64 experts, the
// paper's number, are a compile-time constant: loops over them keep a token in registers.
template <typename Body>
void run_for_experts(int64_t experts, const Body& body) {
  if (experts == 64)
    run_widest([&] { body(std::integral_constant<int64_t, 64>()); });
  else
    run_widest([&] { body(experts); });
}

// An integer as wide as a float. The bits of floats above 0 have their order, and integer comparisons
// vectorize (simd.h).
template <typename Real>
using BitsOf = std::conditional_t<sizeof(Real) == 4, int32_t, int64_t>;

// The buffers of a chunk, reused for each of its tokens.
template <typename Real>
struct TokenBuffers {
  explicit TokenBuffers(int64_t experts)
      : xhat(experts),
        s(experts),
        p(experts),
        work(experts),
        likely(experts),
        biased(experts),
        chosen(experts) {}
  std::vector<Real> xhat, s, p, work;
  std::vector<BitsOf<Real>> likely, biased;  // keys that order the experts
  std::vector<int32_t> chosen;
};

// Computes the probabilities of one token: fills buffers.s, buffers.p and, if normalized, buffers.xhat.
template <typename Real>
[[gnu::always_inline]] inline Exponentials<Real> probabilities(const Real* z, int64_t experts,
                                                               const RouteRule& rule, Real theta,
                                                               TokenBuffers<Real>& buffers,
                                                               Real* inverse_sigma) {
  if (!rule.normalize) {
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

}  // namespace dtopp::ops
