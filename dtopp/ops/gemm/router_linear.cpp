#include <array>

#include "dtopp/ops/gemm/linear.h"

namespace dtopp::ops {
namespace {

constexpr int64_t kParts = 3;

// x = upper + middle + lower, except for numbers below 2^-110.
std::array<Tensor, kParts> parts_of(const Tensor& x) {
  const Tensor upper = x.to(at::kBFloat16), rest = x - upper;
  const Tensor middle = rest.to(at::kBFloat16);
  return {upper, middle, (rest - middle).to(at::kBFloat16)};
}

// The product of bf16 matrices, accumulated and returned in fp32.
Tensor fp32_product(const Tensor& a, const Tensor& b) {
  return a.is_cpu() ? at::mm(a.to(at::kFloat), b.to(at::kFloat)) : at::mm(a, b, at::kFloat);
}

Tensor logits_in_parts(const Tensor& x_TD, const Tensor& weight_ED) {
  const auto weight = parts_of(weight_ED);
  return fp32_product(x_TD, at::cat({weight[0], weight[1], weight[2]}).t())
      .view({x_TD.size(0), kParts, weight_ED.size(0)})
      .sum(1);
}

Tensor input_gradient_in_parts(const Tensor& grad_TE, const Tensor& weight_ED) {
  const auto grad = parts_of(grad_TE), weight = parts_of(weight_ED);
  return at::mm(at::cat({grad[0], grad[0], grad[1]}, 1), at::cat({weight[0], weight[1], weight[0]}));
}

Tensor weight_gradient_in_parts(const Tensor& grad_TE, const Tensor& x_TD) {
  const auto grad = parts_of(grad_TE);
  return fp32_product(at::cat({grad[0], grad[1], grad[2]}, 1).t(), x_TD)
      .view({kParts, grad_TE.size(1), x_TD.size(1)})
      .sum(0);
}

// A bf16 x and an fp32 weight. No fp32 copy of x is saved for the backward pass.
struct RouterLinear : torch::autograd::Function<RouterLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& x_TD, const Tensor& weight_ED,
                        bool in_parts) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x_TD, weight_ED});
    context->saved_data["in_parts"] = in_parts;
    return in_parts ? logits_in_parts(x_TD, weight_ED) : at::linear(x_TD.to(at::kFloat), weight_ED);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x_TD = saved[0], &weight_ED = saved[1], &grad_TE = grads[0];
    const bool in_parts = context->saved_data["in_parts"].toBool();
    Tensor grad_x_TD, grad_weight_ED;
    if (context->needs_input_grad(0))
      grad_x_TD = in_parts ? input_gradient_in_parts(grad_TE, weight_ED)
                           : at::mm(grad_TE, weight_ED).to(at::kBFloat16);
    if (context->needs_input_grad(1))
      grad_weight_ED =
          in_parts ? weight_gradient_in_parts(grad_TE, x_TD) : at::mm(grad_TE.t(), x_TD.to(at::kFloat));
    return {grad_x_TD, grad_weight_ED, Tensor()};
  }
};

void check(const Tensor& x_TD, const Tensor& weight_ED) {
  TORCH_CHECK(x_TD.dim() == 2 && weight_ED.dim() == 2 && x_TD.size(1) == weight_ED.size(1),
              "router_linear: expected x [T, D] and weight [E, D], got ", x_TD.sizes(), " and ",
              weight_ED.sizes());
  const bool mixed = x_TD.scalar_type() == at::kBFloat16 && weight_ED.scalar_type() == at::kFloat;
  TORCH_CHECK(mixed || x_TD.scalar_type() == weight_ED.scalar_type(),
              "router_linear: expected one dtype, or x in bf16 and the weight in fp32, got ",
              x_TD.scalar_type(), " and ", weight_ED.scalar_type());
}

}  // namespace

Tensor router_linear_in_parts(const Tensor& x_TD, const Tensor& weight_ED) {
  check(x_TD, weight_ED);
  TORCH_CHECK(x_TD.scalar_type() == at::kBFloat16, "router_linear_in_parts: expected x in bf16, got ",
              x_TD.scalar_type());
  return RouterLinear::apply(x_TD, weight_ED, true);
}

Tensor router_linear(const Tensor& x_TD, const Tensor& weight_ED) {
  check(x_TD, weight_ED);
  if (x_TD.scalar_type() == weight_ED.scalar_type()) return at::linear(x_TD, weight_ED);
  return RouterLinear::apply(x_TD, weight_ED, !x_TD.is_cpu());
}

}  // namespace dtopp::ops
