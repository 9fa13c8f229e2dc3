#include "dtopp/ops/linear.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace dtopp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool cpu_multiplies_bf16() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__builtin_cpu_supports("avx512f")) return false;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1U << 5)) != 0) return true;  // AVX512_BF16
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & (1U << 22)) != 0;           // AMX-BF16
#else
  return false;
#endif
}

bool emulates_bf16(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && !has_bf16_matmul(x.device());
}

// y = x W^T multiplied in fp32 and rounded once, saving only the bf16 inputs.
struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x, weight});
    return at::linear(x.to(at::kFloat), weight.to(at::kFloat)).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor grad_y = grads[0].to(at::kFloat);
    at::Tensor grad_x, grad_weight;
    if (context->needs_input_grad(0)) {
      grad_x = at::matmul(grad_y, weight.to(at::kFloat)).to(x.scalar_type());
    }
    if (context->needs_input_grad(1)) {
      const at::Tensor rows = grad_y.reshape({-1, weight.size(0)});
      grad_weight = at::mm(rows.t(), x.reshape({-1, weight.size(1)}).to(at::kFloat)).to(weight.scalar_type());
    }
    return {grad_x, grad_weight};
  }
};

}  // namespace

bool has_bf16_matmul(const at::Device& device) {
  static const bool cpu = cpu_multiplies_bf16();
  return device.is_cpu() ? cpu : true;
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(1),
              "linear: expected x [..., D] and weight [N, D], got ", x.sizes(), " and ", weight.sizes());
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "linear: expected one dtype, got x ", x.scalar_type(),
              " and weight ", weight.scalar_type());
  return emulates_bf16(x) ? LinearFunction::apply(x, weight) : at::linear(x, weight);
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  TORCH_CHECK(q.dim() == 4 && k.sizes() == q.sizes() && v.sizes() == q.sizes(),
              "causal_attention: expected q, k and v of one shape [B, H, L, K], got ", q.sizes(), ", ",
              k.sizes(), " and ", v.sizes());
  const auto attend = [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    return at::scaled_dot_product_attention(a, b, c, std::nullopt, 0.0, /*is_causal=*/true);
  };
  if (!emulates_bf16(q)) return attend(q, k, v);
  return attend(q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat)).to(q.scalar_type());
}

}  // namespace dtopp
