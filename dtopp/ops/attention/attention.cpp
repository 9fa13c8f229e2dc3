#include "dtopp/ops/attention/attention.h"

#include "dtopp/ops/gemm/cpu_kernel.h"
#include "dtopp/ops/gemm/dot_products.h"

namespace dtopp::ops {
namespace {

// Saves its inputs, its result and the sums of exponentials.
struct CpuAttention : torch::autograd::Function<CpuAttention> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        bool causal) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const AttentionResult result = attention_cpu(q, k, v, causal);
    context->save_for_backward({q, k, v, result.y_BHLK, result.logsumexp_BHL});
    context->saved_data["causal"] = causal;
    return result.y_BHLK;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto [q, k, v] = attention_backward_cpu(
        grads[0], saved[0], saved[1], saved[2], {saved[3], saved[4]}, context->saved_data["causal"].toBool());
    return {q, k, v, Tensor()};
  }
};

constexpr int64_t kLargestFlashHead = 256;
constexpr int64_t kFlashHeadMultiple = 8;
constexpr int64_t kCausalMask = 1;  // for _efficient_attention_forward: aligned to the upper left corner

// Consecutive documents of equal length.
struct Run {
  int64_t begin, count, length;

  // Views the run's tokens as [count, H, length, K].
  Tensor of(const Tensor& x_THK) const {
    return x_THK.narrow(0, begin, count * length)
        .view({count, length, x_THK.size(1), x_THK.size(2)})
        .transpose(1, 2);
  }
};

std::vector<Run> runs_of(const Tensor& offsets) {
  const auto offset = offsets.accessor<int32_t, 1>();
  std::vector<Run> runs;
  for (int64_t i = 0; i + 1 < offset.size(0); ++i) {
    const int64_t begin = offset[i], length = offset[i + 1] - begin;
    if (length == 0) continue;
    if (!runs.empty() && runs.back().length == length)
      ++runs.back().count;
    else
      runs.push_back({begin, 1, length});
  }
  return runs;
}

// One autograd node for all documents. With one node per document, each would fill a gradient for all tokens.
struct DocumentAttention : torch::autograd::Function<DocumentAttention> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& offsets) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    Tensor y = at::empty(q.sizes(), q.options());
    variable_list saved = {q, k, v, y, offsets};
    for (const Run& run : runs_of(offsets)) {
      const AttentionResult part = attention_cpu(run.of(q), run.of(k), run.of(v), /*causal=*/true);
      run.of(y).copy_(part.y_BHLK);
      saved.push_back(part.logsumexp_BHL);
    }
    context->save_for_backward(std::move(saved));
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor grad_y = grads[0].contiguous();
    variable_list result;
    for (size_t i = 0; i < 3; ++i) result.push_back(at::empty(saved[i].sizes(), saved[i].options()));
    size_t lse = 5;
    for (const Run& run : runs_of(saved[4])) {
      const auto parts =
          attention_backward_cpu(run.of(grad_y), run.of(saved[0]), run.of(saved[1]), run.of(saved[2]),
                                 {run.of(saved[3]), saved[lse++]}, /*causal=*/true);
      for (size_t i = 0; i < parts.size(); ++i) run.of(result[i]).copy_(parts[i]);
    }
    result.emplace_back();
    return result;
  }
};

Tensor on_cuda(const Tensor& q_THK, const Tensor& k_THK, const Tensor& v_THK, const Tensor& offsets,
               int64_t longest) {
  const int64_t K = q_THK.size(2);
  const bool flash =
      q_THK.scalar_type() == at::kBFloat16 && K % kFlashHeadMultiple == 0 && K <= kLargestFlashHead;
  if (flash)
    return std::get<0>(at::_flash_attention_forward(q_THK, k_THK, v_THK, offsets, offsets, longest, longest,
                                                    0.0, /*is_causal=*/true, /*return_debug_mask=*/false));
  return std::get<0>(at::_efficient_attention_forward(
                         q_THK.unsqueeze(0), k_THK.unsqueeze(0), v_THK.unsqueeze(0), std::nullopt, offsets,
                         offsets, longest, longest, 0.0, kCausalMask, /*compute_log_sumexp=*/true))
      .squeeze(0);
}

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
void append(const Tensor& x_TGK, const CachedSequence& sequence, const Tensor& cache_GLK) {
  const int64_t G = cache_GLK.size(0), L = cache_GLK.size(1), K = cache_GLK.size(2);
  const auto* x = x_TGK.const_data_ptr<Scalar>() + sequence.row * G * K;
  auto* to = cache_GLK.mutable_data_ptr<Scalar>() + sequence.position * K;
  for (int64_t g = 0; g < G; ++g) std::copy_n(x + g * K, K, to + g * L * K);
}

}  // namespace

Tensor self_attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  TORCH_CHECK(q.dim() == 4 && k.sizes() == q.sizes() && v.sizes() == q.sizes(),
              "self_attention: expected q, k and v of one shape [B, H, L, K], got ", q.sizes(), ", ",
              k.sizes(), " and ", v.sizes());
  const bool has_kernel = q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16;
  if (q.is_cpu() && has_kernel && q.numel() > 0) return CpuAttention::apply(q, k, v, causal);
  return at::scaled_dot_product_attention(q, k, v, std::nullopt, 0.0, causal);
}

Tensor document_attention(const Tensor& q_THK, const Tensor& k_THK, const Tensor& v_THK,
                          const Tensor& offsets, int64_t longest) {
  TORCH_CHECK(q_THK.dim() == 3 && k_THK.sizes() == q_THK.sizes() && v_THK.sizes() == q_THK.sizes(),
              "document_attention: expected q, k and v of one shape [T, H, K], got ", q_THK.sizes(), ", ",
              k_THK.sizes(), " and ", v_THK.sizes());
  TORCH_CHECK(offsets.dim() == 1 && offsets.scalar_type() == at::kInt && offsets.device() == q_THK.device(),
              "document_attention: expected offsets int32 [n + 1] on ", q_THK.device(), ", got ",
              offsets.scalar_type(), " ", offsets.sizes(), " on ", offsets.device());
  if (!q_THK.is_cpu()) return on_cuda(q_THK, k_THK, v_THK, offsets, longest);
  const int64_t T = q_THK.size(0);
  const c10::ArrayRef<int32_t> begins(offsets.const_data_ptr<int32_t>(), offsets.numel());
  TORCH_CHECK(!begins.empty() && begins.front() == 0 && begins.back() == T &&
                  std::is_sorted(begins.begin(), begins.end()),
              "document_attention: expected offsets that rise from 0 to the ", T, " tokens");
  return DocumentAttention::apply(q_THK, k_THK, v_THK, offsets.contiguous());
}

void cached_attention(const Tensor& q_THK, const Tensor& k_TGK, const Tensor& v_TGK,
                      std::span<const CachedSequence> sequences, const Tensor& y_THK) {
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
    at::parallel_for(0, std::ssize(sequences) * H, grain, [&](int64_t begin, int64_t end) {
      std::vector<float> scores(longest), sums(K);
      for (int64_t i = begin; i < end; ++i) {
        const CachedSequence& sequence = sequences[i / H];
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
