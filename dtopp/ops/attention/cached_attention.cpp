#include "dtopp/ops/attention/cached_attention.h"

#include <array>
#include <cmath>
#include <vector>

#include "dtopp/ops/core/bfloat16.h"
#include "dtopp/ops/core/simd.h"
#include "dtopp/ops/gemm/cpu_kernel.h"
#include "dtopp/ops/gemm/dot_products.h"

namespace dtopp::ops {
namespace {

constexpr int64_t kCachedNumbers = int64_t{1} << 16;
constexpr int64_t kTogether = 4;  // values that are added to a sum at once

// One head of one sequence.
template <typename Scalar>
struct CachedHead {
  const Scalar *q, *k, *v;
  int64_t length, width;
  Scalar* y;
};

// Returns q k, exact products in fp32 sums.
template <typename Scalar>
[[gnu::always_inline]] inline void multiply_keys(const CachedHead<Scalar>& head, bool by_dots,
                                                 float* scores) {
  const int64_t K = head.width;
  if constexpr (std::is_same_v<Scalar, c10::BFloat16>) {
    if (by_dots)
      return DotProducts::multiply(&head.q, 1, head.k, head.length, K, scores, head.length, head.v);
  }
  for (int64_t l = 0; l < head.length; ++l) {
    const Scalar* k = head.k + l * K;
    float score = 0;
#pragma omp simd reduction(+ : score)
    for (int64_t i = 0; i < K; ++i) score += load(head.q[i]) * load(k[i]);
    scores[l] = score;
  }
}

// scores: memory for `length` numbers. sums: for `width`.
template <typename Scalar>
[[gnu::always_inline]] inline void attend_to_cache(const CachedHead<Scalar>& head, bool by_dots,
                                                   float* scores, float* sums) {
  const int64_t K = head.width;
  const float scale = 1 / std::sqrt(static_cast<float>(K));
  multiply_keys(head, by_dots, scores);
  float highest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : highest)
  for (int64_t l = 0; l < head.length; ++l) highest = scores[l] > highest ? scores[l] : highest;
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t l = 0; l < head.length; ++l) {
    scores[l] = fast_exp(scale * (scores[l] - highest));
    total += scores[l];
  }
  std::fill_n(sums, K, 0.0F);
  int64_t l = 0;
  for (; l + kTogether <= head.length; l += kTogether) {
    const Scalar *a = head.v + l * K, *b = a + K, *c = b + K, *d = c + K;
    const float* p = scores + l;
#pragma omp simd
    for (int64_t i = 0; i < K; ++i)
      sums[i] += (p[0] * load(a[i]) + p[1] * load(b[i])) + (p[2] * load(c[i]) + p[3] * load(d[i]));
  }
  for (; l < head.length; ++l) {
    const Scalar* v = head.v + l * K;
#pragma omp simd
    for (int64_t i = 0; i < K; ++i) sums[i] += scores[l] * load(v[i]);
  }
#pragma omp simd
  for (int64_t i = 0; i < K; ++i) store(head.y + i, sums[i] / total);
}

// Copies the heads of a token to its place in a cache.
template <typename Scalar>
void append(const at::Tensor& x_TGK, const CachedSequence& sequence, const at::Tensor& cache_GLK) {
  const int64_t G = cache_GLK.size(0), L = cache_GLK.size(1), K = cache_GLK.size(2);
  const auto* x = x_TGK.const_data_ptr<Scalar>() + sequence.row * G * K;
  auto* to = cache_GLK.mutable_data_ptr<Scalar>() + sequence.position * K;
  for (int64_t g = 0; g < G; ++g) std::copy_n(x + g * K, K, to + g * L * K);
}

}  // namespace

void cached_attention(const at::Tensor& q_THK, const at::Tensor& k_TGK, const at::Tensor& v_TGK,
                      std::span<const CachedSequence> sequences, const at::Tensor& y_THK) {
  const int64_t H = q_THK.size(1), G = k_TGK.size(1), K = q_THK.size(2);
  int64_t longest = 0;
  for (const CachedSequence& sequence : sequences) longest = std::max(longest, sequence.position + 1);
  const int64_t grain = std::max<int64_t>(kCachedNumbers / std::max<int64_t>(2 * longest * K, 1), 1);
  const bool by_dots = DotProducts::multiply_rows_of(q_THK, 1);
  dispatch_scalar(q_THK, [&](auto scalar) {
    using Scalar = decltype(scalar);
    for (const CachedSequence& sequence : sequences) {
      append<Scalar>(k_TGK, sequence, sequence.k_GLK);
      append<Scalar>(v_TGK, sequence, sequence.v_GLK);
    }
    const auto* q = q_THK.const_data_ptr<Scalar>();
    auto* y = y_THK.mutable_data_ptr<Scalar>();
    at::parallel_for(0, static_cast<int64_t>(sequences.size()) * H, grain, [&](int64_t begin, int64_t end) {
      std::vector<float> scores(static_cast<size_t>(longest)), sums(static_cast<size_t>(K));
      for (int64_t i = begin; i < end; ++i) {
        const CachedSequence& sequence = sequences[static_cast<size_t>(i / H)];
        const int64_t h = i % H, g = h / (H / G), at = (sequence.row * H + h) * K;
        const int64_t from = (g * sequence.k_GLK.size(1) + sequence.first) * K;
        const CachedHead<Scalar> head{q + at,
                                      sequence.k_GLK.const_data_ptr<Scalar>() + from,
                                      sequence.v_GLK.const_data_ptr<Scalar>() + from,
                                      sequence.position + 1 - sequence.first,
                                      K,
                                      y + at};
        run_widest([&] { attend_to_cache(head, by_dots, scores.data(), sums.data()); });
      }
    });
  });
}

}  // namespace dtopp::ops
