#include "dtopp/ops/attention/attention.h"

#include "dtopp/ops/attention/attention_cpu.h"

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

}  // namespace dtopp::ops
