#include "dtopp/ops/attention/attention.h"

#include "dtopp/ops/attention/attention_tiles_cpu.h"

namespace dtopp::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Saves its inputs, its result and the sums of exponentials.
struct CpuAttention : torch::autograd::Function<CpuAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, bool causal) {
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
    return {q, k, v, at::Tensor()};
  }
};

}  // namespace

at::Tensor self_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal) {
  TORCH_CHECK(q.dim() == 4 && k.sizes() == q.sizes() && v.sizes() == q.sizes(),
              "self_attention: expected q, k and v of one shape [B, H, L, K], got ", q.sizes(), ", ",
              k.sizes(), " and ", v.sizes());
  const bool has_kernel = q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16;
  if (q.is_cpu() && has_kernel && q.numel() > 0) return CpuAttention::apply(q, k, v, causal);
  return at::scaled_dot_product_attention(q, k, v, std::nullopt, 0.0, causal);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kLargestFlashHead = 256;
constexpr int64_t kFlashHeadMultiple = 8;
constexpr int64_t kCausalMask = 1;  // for _efficient_attention_forward: aligned to the upper left corner

// Consecutive documents of equal length.
struct Run {
  int64_t begin, count, length;

  // Views the run's tokens as [count, H, length, K].
  at::Tensor of(const at::Tensor& x_THK) const {
    return x_THK.narrow(0, begin, count * length)
        .view({count, length, x_THK.size(1), x_THK.size(2)})
        .transpose(1, 2);
  }
};

std::vector<Run> runs_of(c10::ArrayRef<int32_t> offsets) {
  std::vector<Run> runs;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const int64_t begin = offsets[i], length = offsets[i + 1] - begin;
    if (length == 0) continue;
    if (!runs.empty() && runs.back().length == length)
      ++runs.back().count;
    else
      runs.push_back({begin, 1, length});
  }
  return runs;
}

std::vector<Run> runs_of(const at::Tensor& offsets) {
  return runs_of({offsets.const_data_ptr<int32_t>(), static_cast<size_t>(offsets.numel())});
}

// One autograd node for all documents. With one node per document, each would fill a gradient for all tokens.
struct DocumentAttention : torch::autograd::Function<DocumentAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& offsets) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    at::Tensor y = at::empty(q.sizes(), q.options());
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
    const at::Tensor grad_y = grads[0].contiguous();
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

at::Tensor on_cuda(const at::Tensor& q_THK, const at::Tensor& k_THK, const at::Tensor& v_THK,
                   const at::Tensor& offsets, int64_t longest) {
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

void check_offsets(const at::Tensor& offsets, int64_t tokens) {
  bool fits = offsets.numel() > 0;
  int32_t last = 0;
  if (fits) {
    const c10::ArrayRef<int32_t> values(offsets.const_data_ptr<int32_t>(),
                                        static_cast<size_t>(offsets.numel()));
    fits = values.front() == 0 && values.back() == tokens;
    for (const int32_t value : values) {
      fits = fits && value >= last;
      last = value;
    }
  }
  TORCH_CHECK(fits, "document_attention: expected offsets that rise from 0 to the ", tokens, " tokens");
}

}  // namespace

at::Tensor document_attention(const at::Tensor& q_THK, const at::Tensor& k_THK, const at::Tensor& v_THK,
                              const at::Tensor& offsets, int64_t longest) {
  TORCH_CHECK(q_THK.dim() == 3 && k_THK.sizes() == q_THK.sizes() && v_THK.sizes() == q_THK.sizes(),
              "document_attention: expected q, k and v of one shape [T, H, K], got ", q_THK.sizes(), ", ",
              k_THK.sizes(), " and ", v_THK.sizes());
  TORCH_CHECK(offsets.dim() == 1 && offsets.scalar_type() == at::kInt && offsets.device() == q_THK.device(),
              "document_attention: expected offsets int32 [n + 1] on ", q_THK.device(), ", got ",
              offsets.scalar_type(), " ", offsets.sizes(), " on ", offsets.device());
  if (!q_THK.is_cpu()) return on_cuda(q_THK, k_THK, v_THK, offsets, longest);
  check_offsets(offsets, q_THK.size(0));
  return DocumentAttention::apply(q_THK, k_THK, v_THK, offsets.contiguous());
}

}  // namespace dtopp::ops
