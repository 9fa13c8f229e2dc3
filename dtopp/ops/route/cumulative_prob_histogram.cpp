
#include <numeric>
#include <utility>

#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/route/cumulative_prob_bins.h"
#include "dtopp/ops/route/route.h"
#include "dtopp/ops/route/route_cpu.h"

namespace dtopp::ops {
namespace {

Tensor cumulative_prob_histogram_meta(const Tensor& logits_TE, const Tensor& scale,
                                      c10::string_view normalization, int64_t max_experts, int64_t stride,
                                      int64_t zero_experts) {
  check_cumulative_prob_histogram(logits_TE, scale, normalization, max_experts, stride, zero_experts);
  return at::empty({kCumulativeProbBins}, logits_TE.options().dtype(at::kLong));
}

constexpr int64_t kSortedFrom = 128;  // experts; above this, sorting is faster than comparing all pairs

// before[i] = the sum of the probabilities of the experts before expert i: the likelier ones, and equally
// likely ones of lower index.
template <typename Real>
[[gnu::always_inline]] inline void compare_all(const Real* p, int32_t experts, Real* before) {
  using Bits = BitsOf<Real>;
  std::fill(before, before + experts, Real(0));
  for (int32_t j = 0; j < experts; ++j) {
    const auto other = std::bit_cast<Bits>(p[j]);
#pragma omp simd
    for (int32_t i = 0; i < experts; ++i) {
      const Bits key = std::bit_cast<Bits>(p[i]) - (i > j ? 1 : 0);
      before[i] += std::bit_cast<Real>(other > key ? other : Bits(0));
    }
  }
}

template <typename Real>
[[gnu::always_inline]] inline void count_compared(TokenBuffers<Real>& buffers, int64_t experts, int64_t real,
                                                  int64_t* histogram) {
  const Real* before = buffers.s.data();
  int32_t* bin = buffers.chosen.data();
  compare_all(buffers.p.data(), static_cast<int32_t>(experts), buffers.s.data());
#pragma omp simd
  for (int64_t e = 0; e < experts; ++e) bin[e] = cumulative_prob_bin(before[e]);
  for (int64_t e = 0; e < real; ++e) ++histogram[bin[e]];
  if (real == experts) --histogram[0];  // the likeliest expert has no expert before it
}

// Sorts numbers that are not negative in descending order, by one byte after the other. Comparisons would
// mispredict branches. `spare` has as many elements.
template <typename Real>
void sort_descending(std::vector<Real>& numbers, std::vector<Real>& spare) {
  constexpr size_t kBytes = sizeof(Real), kDigits = 256;
  const auto digit = [](Real number, size_t byte) {
    return static_cast<size_t>(std::bit_cast<BitsOf<Real>>(number) >> (8 * byte)) % kDigits;
  };
  std::array<std::array<uint32_t, kDigits>, kBytes> places{};
  for (const Real number : numbers)
    for (size_t byte = 0; byte < kBytes; ++byte) ++places[byte][digit(number, byte)];
  for (size_t byte = 0; byte < kBytes; ++byte) {
    uint32_t before = 0;
    for (size_t value = kDigits; value-- > 0;) before += std::exchange(places[byte][value], before);
    for (const Real number : numbers) spare[places[byte][digit(number, byte)]++] = number;
    numbers.swap(spare);
  }
}

template <typename Real>
[[gnu::always_inline]] inline void count_sorted(TokenBuffers<Real>& buffers, int64_t limit,
                                                int64_t* histogram) {
  sort_descending(buffers.p, buffers.s);
  double before = buffers.p[0];
  for (int64_t n = 1; n < limit; ++n) {
    ++histogram[cumulative_prob_bin(before)];
    before += buffers.p[n];
  }
}

// Counts the experts below `real`, the likeliest included.
template <typename Real>
[[gnu::always_inline]] inline void count_real(TokenBuffers<Real>& buffers, int64_t limit, int64_t real,
                                              int64_t* histogram) {
  const std::vector<Real>& p = buffers.p;
  std::iota(buffers.chosen.begin(), buffers.chosen.end(), 0);
  std::stable_sort(buffers.chosen.begin(), buffers.chosen.end(),
                   [&](int32_t a, int32_t b) { return p[a] > p[b]; });
  double before = 0;
  for (int64_t n = 0; n < limit; ++n) {
    const int32_t e = buffers.chosen[n];
    if (e < real) ++histogram[cumulative_prob_bin(before)];
    before += p[e];
  }
}

template <typename Real>
[[gnu::always_inline]] inline void count_tokens(const Real* logits, int64_t tokens, int64_t experts,
                                                int64_t zero_experts, int64_t stride, const RouteRule& rule,
                                                Real theta, int64_t* histogram) {
  TokenBuffers<Real> buffers(experts);
  for (int64_t t = 0; t < tokens; t += stride) {
    Real inverse_sigma = 1;
    const auto state = probabilities(logits + t * experts, experts, rule, theta, buffers, &inverse_sigma);
    if (!state.finite()) continue;
    const int64_t real = experts - zero_experts;
    if (experts < kSortedFrom && rule.most == experts) {
      count_compared(buffers, experts, real, histogram);
    } else if (zero_experts > 0) {
      count_real(buffers, rule.most, real, histogram);
    } else {
      count_sorted(buffers, rule.most, histogram);
    }
  }
}

Tensor cumulative_prob_histogram_cpu(const Tensor& logits_TE, const Tensor& scale,
                                     c10::string_view normalization, int64_t max_experts, int64_t stride,
                                     int64_t zero_experts) {
  check_cumulative_prob_histogram(logits_TE, scale, normalization, max_experts, stride, zero_experts);
  const int64_t tokens = logits_TE.size(0), experts = logits_TE.size(1);
  const RouteRule rule = route_rule(normalization, experts, /*top_k=*/0, max_experts, /*renormalize=*/false);
  const Tensor z_TE = logits_TE.to(accumulator_type(logits_TE)).contiguous();
  const int64_t counted = (tokens + stride - 1) / stride;
  const int64_t chunks = (counted + kTokensPerChunk - 1) / kTokensPerChunk;
  const int64_t shares = std::clamp<int64_t>(at::get_num_threads(), 1, std::max<int64_t>(chunks, 1));
  const Tensor counts_SM = at::zeros({shares, kCumulativeProbBins}, logits_TE.options().dtype(at::kLong));
  AT_DISPATCH_FLOATING_TYPES(z_TE.scalar_type(), "cumulative_prob_histogram", [&] {
    const auto theta = rule.learn_scale ? scale.item<scalar_t>() : scalar_t(1);
    const scalar_t* logits = z_TE.const_data_ptr<scalar_t>();
    int64_t* counts = counts_SM.mutable_data_ptr<int64_t>();
    at::parallel_for(0, shares, 1, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        const int64_t first = counted * s / shares * stride, last = counted * (s + 1) / shares * stride;
        run_for_experts(experts, [&](auto known) {
          count_tokens(logits + first * experts, std::min(last, tokens) - first, known, zero_experts, stride,
                       rule, theta, counts + s * kCumulativeProbBins);
        });
      }
    });
  });
  return counts_SM.sum(0);
}

}  // namespace

void check_cumulative_prob_histogram(const Tensor& logits_TE, const Tensor& scale,
                                     c10::string_view normalization, int64_t max_experts, int64_t stride,
                                     int64_t zero_experts) {
  check_router_logits("cumulative_prob_histogram", logits_TE, scale, normalization);
  TORCH_CHECK(max_experts >= 0, "cumulative_prob_histogram: expected max_experts of at least 0, got ",
              max_experts);
  TORCH_CHECK(stride >= 1, "cumulative_prob_histogram: expected a stride of at least 1, got ", stride);
  TORCH_CHECK(zero_experts >= 0 && zero_experts < logits_TE.sym_size(1),
              "cumulative_prob_histogram: expected fewer zero experts than ", logits_TE.sym_size(1), ", got ",
              zero_experts);
}

Tensor cumulative_prob_histogram(const Tensor& logits_TE, const Tensor& scale, std::string_view normalization,
                                 int64_t max_experts, int64_t stride, int64_t zero_experts) {
  return call_op<"dtopp::cumulative_prob_histogram", decltype(cumulative_prob_histogram_meta)>(
      logits_TE, scale, c10::string_view(normalization), max_experts, stride, zero_experts);
}

TORCH_LIBRARY_FRAGMENT(dtopp, m) {
  m.def(
      "cumulative_prob_histogram(Tensor logits_TE, Tensor scale, *, str normalization=\"dynamic\", int "
      "max_experts=0, int stride=1, int zero_experts=0) -> Tensor");
}

TORCH_LIBRARY_IMPL(dtopp, Meta, m) { m.impl("cumulative_prob_histogram", cumulative_prob_histogram_meta); }
TORCH_LIBRARY_IMPL(dtopp, CPU, m) { m.impl("cumulative_prob_histogram", cumulative_prob_histogram_cpu); }

}  // namespace dtopp::ops
