#include "dtopp/ops/route/route_cpu.h"

#include <array>
#include <numeric>

namespace dtopp::ops {
namespace {

// An integer with the order of the floats, -0 below 0.
template <typename Real>
[[gnu::always_inline]] inline BitsOf<Real> key_of(Real number) {
  const auto bits = std::bit_cast<BitsOf<Real>>(number);
  return bits ^ ((bits >> (8 * sizeof(Real) - 1)) & std::numeric_limits<BitsOf<Real>>::max());
}

// Returns the first index of the largest key, and removes it.
template <typename Key>
[[gnu::always_inline]] inline int32_t take_largest(Key* left, int32_t experts) {
  Key highest = left[0];
#pragma omp simd reduction(max : highest)
  for (int32_t e = 0; e < experts; ++e) highest = left[e] > highest ? left[e] : highest;
  int32_t first = experts;
#pragma omp simd reduction(min : first)
  for (int32_t e = 0; e < experts; ++e) {
    const int32_t candidate = left[e] == highest ? e : experts;
    first = candidate < first ? candidate : first;
  }
  left[first] = std::numeric_limits<Key>::min();
  return first;
}

// The values that a token's selection depends on, next to its logits.
template <typename Real>
struct RouteValues {
  RouteRule rule;
  double threshold;
  Real theta;
  const Real *bias, *cut;  // null: none. `bias` is that of kernel_bias().
};

// The number of a token's experts, their probability, and that of as many likeliest experts (if there is a
// threshold or no bias).
struct Selection {
  int64_t count = 0;
  double sum = 0, likeliest_sum = 0;
};

// Writes the selected experts to `token.chosen`, the likeliest or, with a bias, the one with the largest
// biased score first. Probabilities are added up in double in this order, and those of the likeliest are
// compared with the threshold.
template <typename Real>
[[gnu::always_inline]] inline Selection select_experts(TokenBuffers<Real>& token, int64_t experts,
                                                       bool finite, const RouteValues<Real>& by) {
  const RouteRule& rule = by.rule;
  const Real *p = token.p.data(), *s = token.s.data();
  int32_t* chosen = token.chosen.data();
  // NaNs have no order: select by index; training then reports NaN gates instead of crashing. All experts
  // need no order if no sum is wanted.
  if (!finite || (!rule.by_threshold && !rule.renormalize && rule.most == experts)) {
    const int64_t count = rule.by_threshold ? 1 : rule.most;
    std::iota(chosen, chosen + count, 0);
    return {count, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
  }
  const bool by_bias = by.bias != nullptr, by_prob = rule.by_threshold || !by_bias;
  BitsOf<Real>*likely = token.likely.data(), *biased = token.biased.data();
#pragma omp simd
  for (int64_t e = 0; e < experts; ++e) likely[e] = key_of(p[e]);
  if (by_bias) {
    const bool is_score = rule.bias_on == BiasOn::kScore;
    constexpr Real kLowest = std::numeric_limits<Real>::lowest();
#pragma omp simd
    for (int64_t e = 0; e < experts; ++e) {
      const Real score = rule.bias_on == BiasOn::kLogit ? p[e] * by.bias[e]
                                                        : (is_score ? fast_exp(s[e]) : p[e]) + by.bias[e];
      biased[e] = key_of(score > kLowest ? score : kLowest);  // NaN has no order
    }
  }
  Selection made;
  while (made.count < rule.most &&
         (!rule.by_threshold || made.count == 0 || made.likeliest_sum < by.threshold)) {
    int32_t next = 0;
    if (by_prob) {
      next = take_largest(likely, static_cast<int32_t>(experts));
      made.likeliest_sum += p[next];
    }
    if (by_bias) next = take_largest(biased, static_cast<int32_t>(experts));
    made.sum += p[next];
    chosen[made.count++] = next;
  }
  return made;
}

// The next two write the gates of a token whose experts do not depend on each other. NaN counts as selected,
// so that its gate shows in the loss.
template <typename Real>
[[gnu::always_inline]] inline void write_relu_gates(const Real* z, int64_t experts, Real* gates) {
#pragma omp simd
  for (int64_t e = 0; e < experts; ++e) gates[e] = z[e] <= 0 ? Real(0) : z[e];
}

template <typename Real>
[[gnu::always_inline]] inline void write_sigmoid_gates(const Real* z, const Real* cut, int64_t experts,
                                                       Real* gates) {
#pragma omp simd
  for (int64_t e = 0; e < experts; ++e) {
    const Real gate = 1 / (1 + fast_exp(-z[e]));
    gates[e] = z[e] < cut[e] ? Real(0) : gate;
  }
}

template <typename Real>
[[gnu::always_inline]] inline double entropy_of(const Real* s, const Real* p, Real lse, int64_t experts) {
  Real entropy = 0;
#pragma omp simd reduction(+ : entropy)
  for (int64_t e = 0; e < experts; ++e) entropy += p[e] == 0 ? Real(0) : p[e] * (lse - s[e]);
  return entropy;
}

// Sums over the tokens of one chunk.
struct RouteSums {
  std::vector<double> prob_E;
  std::vector<int64_t> counts_E, histogram;
  double entropy = 0, router_z = 0;
  std::array<int64_t, 2> mass = {};
};

// Selects the experts of a token by its probabilities and writes their gates.
template <typename Real>
[[gnu::always_inline]] inline Selection write_gates(const Real* z, int64_t experts, bool finite,
                                                    const RouteValues<Real>& by, TokenBuffers<Real>& buffers,
                                                    Real* gates) {
  const Real* p = buffers.p.data();
  const int32_t* chosen = buffers.chosen.data();
  const Selection made = select_experts(buffers, experts, finite, by);
  const double divisor = by.rule.renormalize ? made.sum : 1;
  const bool is_sigmoid = by.rule.gate == Gate::kSigmoid;
  std::fill(gates, gates + experts, Real(0));
  for (int64_t n = 0; n < made.count; ++n) {
    const int32_t e = chosen[n];
    gates[e] = is_sigmoid ? 1 / (1 + fast_exp(-z[e])) : static_cast<Real>(p[e] / divisor);
  }
  return made;
}

template <typename Real>
[[gnu::always_inline]] inline void route_chunk(const Real* logits, int64_t tokens, int64_t experts,
                                               const RouteValues<Real>& by, Real* gates,
                                               TokenBuffers<Real>& buffers, RouteSums& sums) {
  // Before the first thresholds, gates are sigmoids but the likeliest experts are selected.
  const bool own = by.rule.gate == Gate::kRelu || (by.cut != nullptr && !std::isnan(by.cut[0]));
  for (int64_t t = 0; t < tokens; ++t) {
    const Real* z = logits + t * experts;
    Real* gates_E = gates + t * experts;
    const Real* p = buffers.p.data();
    Real inverse_sigma = 1;
    const auto state = probabilities(z, experts, by.rule, by.theta, buffers, &inverse_sigma);
    int64_t count = 0;
    if (own) {
      if (by.cut == nullptr)
        write_relu_gates(z, experts, gates_E);
      else
        write_sigmoid_gates(z, by.cut, experts, gates_E);
      int64_t* counts_E = sums.counts_E.data();
#pragma omp simd reduction(+ : count)
      for (int64_t e = 0; e < experts; ++e) {
        const int64_t chosen = gates_E[e] != 0 ? 1 : 0;
        counts_E[e] += chosen;
        count += chosen;
      }
    } else {
      const Selection made = write_gates(z, experts, state.finite(), by, buffers, gates_E);
      count = made.count;
      for (int64_t n = 0; n < count; ++n) ++sums.counts_E[buffers.chosen[n]];
      if (by.rule.by_threshold && by.bias != nullptr && state.finite()) {
        sums.mass[0] += std::llround(made.sum / kMassPerUnit);
        sums.mass[1] += std::llround(made.likeliest_sum / kMassPerUnit);
      }
    }
    ++sums.histogram[count];
    const Real* q = by.rule.gate == Gate::kRelu ? gates_E : p;
    double* prob_E = sums.prob_E.data();
#pragma omp simd
    for (int64_t e = 0; e < experts; ++e) prob_E[e] += q[e];
    sums.entropy += entropy_of(buffers.s.data(), p, state.lse(), experts);
    const double lse = by.rule.normalize ? exponentials(z, experts, buffers.work.data()).lse() : state.lse();
    sums.router_z += lse * lse;
  }
}

template <typename Real>
std::vector<RouteSums> route_chunks(const Tensor& logits_TE, const RouteValues<Real>& by, Tensor& gates_TE) {
  const int64_t tokens = logits_TE.size(0), experts = logits_TE.size(1);
  const int64_t chunks = (tokens + kTokensPerChunk - 1) / kTokensPerChunk;
  const Real* logits = logits_TE.const_data_ptr<Real>();
  Real* gates = gates_TE.mutable_data_ptr<Real>();
  std::vector<RouteSums> sums(chunks);
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    TokenBuffers<Real> buffers(experts);
    for (int64_t c = begin; c < end; ++c) {
      sums[c].prob_E.resize(experts);
      sums[c].counts_E.resize(experts);
      sums[c].histogram.resize(experts + 1);
      const int64_t first = c * kTokensPerChunk;
      const int64_t count = std::min(kTokensPerChunk, tokens - first);
      run_for_experts(experts, [&](auto known) {
        route_chunk(logits + first * experts, count, known, by, gates + first * experts, buffers, sums[c]);
      });
    }
  });
  return sums;
}

RouteTuple route_cpu(const Tensor& logits_TE, const Tensor& scale, const Tensor& threshold,
                     c10::string_view normalization, int64_t top_k, int64_t max_experts, bool renormalize,
                     const OptionalTensor& bias_E, c10::string_view bias_on, c10::string_view gate,
                     const OptionalTensor& cut_E) {
  check_route(logits_TE, scale, threshold, normalization, top_k, max_experts, renormalize, bias_E, bias_on,
              gate, cut_E);
  const double p = threshold.item<double>();
  TORCH_CHECK(top_k > 0 || !std::isnan(p), "route: expected a threshold between 0 and 1, got ", p);
  const int64_t tokens = logits_TE.size(0), experts = logits_TE.size(1);
  const RouteRule rule = route_rule(normalization, experts, top_k, max_experts, renormalize,
                                    bias_on_of(bias_E, bias_on), gate_of(gate));
  const auto dtype = accumulator_type(logits_TE);
  const auto real = logits_TE.options().dtype(dtype);
  Tensor gates_TE = at::empty({tokens, experts}, real);
  Tensor counts_E = at::zeros({experts}, real.dtype(at::kLong));
  Tensor histogram = at::zeros({experts + 1}, real.dtype(at::kLong));
  const Tensor mean_prob_E = at::empty({experts}, real);
  const Tensor mean_entropy = at::empty({}, real), mean_z = at::empty({}, real);
  Tensor mass = at::zeros({2}, real.dtype(at::kLong));
  const Tensor z_TE = logits_TE.to(dtype).contiguous();
  const Tensor bias = kernel_bias(bias_E, bias_on), cut = cut_E ? cut_E->contiguous() : Tensor();
  std::vector<RouteSums> chunks;
  AT_DISPATCH_FLOATING_TYPES(dtype, "route", [&] {
    const auto values = [](const Tensor& one_E) {
      return one_E.defined() ? one_E.const_data_ptr<scalar_t>() : nullptr;
    };
    const auto theta = rule.learn_scale ? scale.item<scalar_t>() : scalar_t(1);
    chunks = route_chunks<scalar_t>(z_TE, {rule, p, theta, values(bias), values(cut)}, gates_TE);
  });
  std::vector<double> prob_E(experts);
  double entropy = 0, router_z = 0;
  for (const RouteSums& chunk : chunks) {
    for (int64_t e = 0; e < experts; ++e) {
      prob_E[e] += chunk.prob_E[e];
      counts_E.mutable_data_ptr<int64_t>()[e] += chunk.counts_E[e];
    }
    for (int64_t n = 0; n <= experts; ++n) histogram.mutable_data_ptr<int64_t>()[n] += chunk.histogram[n];
    entropy += chunk.entropy;
    router_z += chunk.router_z;
    for (int64_t n = 0; n < 2; ++n) mass.mutable_data_ptr<int64_t>()[n] += chunk.mass[n];
  }
  const double count = static_cast<double>(std::max<int64_t>(tokens, 1));
  // Operations of libtorch would take as long as the selection of a few tokens.
  AT_DISPATCH_FLOATING_TYPES(dtype, "route", [&] {
    auto* mean = mean_prob_E.mutable_data_ptr<scalar_t>();
    for (int64_t e = 0; e < experts; ++e) mean[e] = static_cast<scalar_t>(prob_E[e] / count);
    *mean_entropy.mutable_data_ptr<scalar_t>() = static_cast<scalar_t>(entropy / count);
    *mean_z.mutable_data_ptr<scalar_t>() = static_cast<scalar_t>(router_z / count);
  });
  return {gates_TE, counts_E, histogram, mean_prob_E, mean_entropy, mean_z, mass};
}

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
    for (int64_t e = 0; e < experts; ++e)
      dp[e] += gates_E[e] != 0 ? (grad_gates_E[e] - shift) * inverse : Real(0);
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
double route_backward_chunks(const Tensor& logits_TE, const Tensor& gates_TE, Real theta,
                             const GradientSources<Real>& grad, const RouteRule& rule,
                             Tensor& grad_logits_TE) {
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

std::tuple<Tensor, Tensor> route_backward_cpu(const Tensor& logits_TE, const Tensor& scale,
                                              const Tensor& gates_TE, const OptionalTensor& grad_gates_TE,
                                              const OptionalTensor& grad_mean_prob_E,
                                              const OptionalTensor& grad_entropy,
                                              const OptionalTensor& grad_router_z,
                                              c10::string_view normalization, bool renormalize,
                                              c10::string_view gate) {
  check_route_backward(logits_TE, scale, gates_TE, grad_gates_TE, grad_mean_prob_E, grad_entropy,
                       grad_router_z, normalization);
  const RouteRule rule = route_rule(normalization, logits_TE.size(1), /*top_k=*/0, /*max_experts=*/0,
                                    renormalize, BiasOn::kNothing, gate_of(gate));
  const auto dtype = accumulator_type(logits_TE);
  const double count = static_cast<double>(std::max<int64_t>(logits_TE.size(0), 1));
  const Tensor z_TE = logits_TE.to(dtype).contiguous();
  const Tensor gates = gates_TE.contiguous();
  const Tensor grad_gates = grad_gates_TE ? grad_gates_TE->contiguous() : Tensor();
  const Tensor grad_prob_E = grad_mean_prob_E ? grad_mean_prob_E->div(count).contiguous()
                                              : at::zeros({logits_TE.size(1)}, z_TE.options());
  Tensor grad_logits_TE = at::empty_like(z_TE);
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

TORCH_LIBRARY_IMPL(dtopp, CPU, m) {
  m.impl("route", route_cpu);
  m.impl("route_backward", route_backward_cpu);
}

}  // namespace dtopp::ops
