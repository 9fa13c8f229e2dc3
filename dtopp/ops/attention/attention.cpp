#include "dtopp/ops/attention/attention.h"

#include "dtopp/ops/gemm/linear.h"

namespace dtopp::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// With AVX512_BF16, libtorch's bf16 backward pass takes two to three times as long as fp32 up to this length.
// At twice this length both take the same time; at greater lengths bf16 is faster.
constexpr int64_t kShort = 128;

bool is_faster_in_fp32(const at::Tensor& q) {
  if (!q.is_cpu() || q.scalar_type() != at::kBFloat16 || q.numel() == 0) return false;
  if (!has_bf16_matmul(q.device())) return true;
  return !has_amx() && q.size(2) <= kShort;
}

// Attention on bf16 tensors, computed in fp32. It saves and returns bf16.
struct WidenedAttention : torch::autograd::Function<WidenedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, bool causal) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [y, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q.to(at::kFloat), k.to(at::kFloat),
                                                                          v.to(at::kFloat), 0.0, causal);
    const at::Tensor rounded = y.to(q.scalar_type());
    context->save_for_backward({q, k, v, rounded, lse});
    context->saved_data["causal"] = causal;
    return rounded;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto wide = [](const at::Tensor& x) { return x.to(at::kFloat); };
    const auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        wide(grads[0]), wide(saved[0]), wide(saved[1]), wide(saved[2]), wide(saved[3]), saved[4], 0.0,
        context->saved_data["causal"].toBool());
    const at::ScalarType type = saved[0].scalar_type();
    return {q.to(type), k.to(type), v.to(type), at::Tensor()};
  }
};

}  // namespace

at::Tensor self_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal) {
  TORCH_CHECK(q.dim() == 4 && k.sizes() == q.sizes() && v.sizes() == q.sizes(),
              "self_attention: expected q, k and v of one shape [B, H, L, K], got ", q.sizes(), ", ",
              k.sizes(), " and ", v.sizes());
  if (is_faster_in_fp32(q)) return WidenedAttention::apply(q, k, v, causal);
  return at::scaled_dot_product_attention(q, k, v, std::nullopt, 0.0, causal);
}

}  // namespace dtopp::ops
