#include "dtopp/ops/attention/cached_attention.h"

#include <array>
#include <cmath>
#include <vector>

#include "dtopp/ops/core/bfloat16.h"
#include "dtopp/ops/core/simd.h"
#include "dtopp/ops/gemm/cpu_kernel.h"

namespace dtopp::ops {
namespace {

constexpr int64_t kCachedNumbers = int64_t{1} << 16;
constexpr int64_t kTogether = 4;  // values that are added to a sum at once

// One head of one sequence.
template <typename Scalar>
struct CachedHead {
  const Scalar *q, *k, *v;
  int64_t length, k_stride, v_stride, width;
  Scalar* y;
};

// scores: memory for `length` numbers. sums: for 2 * `width`.
template <typename Scalar>
[[gnu::always_inline]] inline void attend_to_cache(const CachedHead<Scalar>& head, float* scores,
                                                   float* sums) {
  const int64_t K = head.width;
  const float scale = 1 / std::sqrt(static_cast<float>(K));
  float* q = sums + K;
#pragma omp simd
  for (int64_t i = 0; i < K; ++i) q[i] = scale * load(head.q[i]);
  float highest = -std::numeric_limits<float>::infinity();
  for (int64_t l = 0; l < head.length; ++l) {
    const Scalar* k = head.k + l * head.k_stride;
    float score = 0;
#pragma omp simd reduction(+ : score)
    for (int64_t i = 0; i < K; ++i) score += q[i] * load(k[i]);
    scores[l] = score;
    highest = score > highest ? score : highest;
  }
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t l = 0; l < head.length; ++l) {
    scores[l] = fast_exp(scores[l] - highest);
    total += scores[l];
  }
  std::fill_n(sums, K, 0.0F);
  int64_t l = 0;
  for (; l + kTogether <= head.length; l += kTogether) {
    const Scalar *a = head.v + l * head.v_stride, *b = a + head.v_stride, *c = b + head.v_stride,
                 *d = c + head.v_stride;
    const float* p = scores + l;
#pragma omp simd
    for (int64_t i = 0; i < K; ++i)
      sums[i] += (p[0] * load(a[i]) + p[1] * load(b[i])) + (p[2] * load(c[i]) + p[3] * load(d[i]));
  }
  for (; l < head.length; ++l) {
    const Scalar* v = head.v + l * head.v_stride;
#pragma omp simd
    for (int64_t i = 0; i < K; ++i) sums[i] += scores[l] * load(v[i]);
  }
#pragma omp simd
  for (int64_t i = 0; i < K; ++i) store(head.y + i, sums[i] / total);
}

}  // namespace

void cached_attention(const at::Tensor& q_THK, std::span<const CachedSequence> sequences,
                      const at::Tensor& y_THK) {
  const int64_t H = q_THK.size(1), K = q_THK.size(2);
  int64_t longest = 0;
  for (const CachedSequence& sequence : sequences) longest = std::max(longest, sequence.k_LGK.size(0));
  const int64_t grain = std::max<int64_t>(kCachedNumbers / std::max<int64_t>(2 * longest * K, 1), 1);
  dispatch_scalar(q_THK, [&](auto scalar) {
    using Scalar = decltype(scalar);
    const auto* q = q_THK.const_data_ptr<Scalar>();
    auto* y = y_THK.mutable_data_ptr<Scalar>();
    at::parallel_for(0, static_cast<int64_t>(sequences.size()) * H, grain, [&](int64_t begin, int64_t end) {
      std::vector<float> scores(static_cast<size_t>(longest)), sums(static_cast<size_t>(2 * K));
      for (int64_t i = begin; i < end; ++i) {
        const CachedSequence& sequence = sequences[static_cast<size_t>(i / H)];
        const at::Tensor &k = sequence.k_LGK, &v = sequence.v_LGK;
        const int64_t h = i % H, g = h / (H / k.size(1)), at = (sequence.row * H + h) * K;
        const CachedHead<Scalar> head{q + at,
                                      k.const_data_ptr<Scalar>() + g * k.stride(1),
                                      v.const_data_ptr<Scalar>() + g * v.stride(1),
                                      k.size(0),
                                      k.stride(0),
                                      v.stride(0),
                                      K,
                                      y + at};
        run_widest([&] { attend_to_cache(head, scores.data(), sums.data()); });
      }
    });
  });
}

}  // namespace dtopp::ops
