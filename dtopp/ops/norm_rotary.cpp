#include "dtopp/ops/norm_rotary.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

namespace dtopp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor call_forward(const at::Tensor& x_TD, const at::Tensor& gain_D, const at::Tensor& cos_TK,
                        const at::Tensor& sin_TK, double eps) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("dtopp::norm_rotary_forward", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                               const at::Tensor&, double)>();
  return op.call(x_TD, gain_D, cos_TK, sin_TK, eps);
}

std::tuple<at::Tensor, at::Tensor> call_backward(const at::Tensor& grad_y_THK, const at::Tensor& x_TD,
                                                 const at::Tensor& gain_D, const at::Tensor& cos_TK,
                                                 const at::Tensor& sin_TK, double eps) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("dtopp::norm_rotary_backward", "")
          .typed<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                    const at::Tensor&, const at::Tensor&, double)>();
  return op.call(grad_y_THK, x_TD, gain_D, cos_TK, sin_TK, eps);
}

// Saves its inputs alone.
struct NormRotaryFunction : torch::autograd::Function<NormRotaryFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_TD, const at::Tensor& gain_D,
                            const at::Tensor& cos_TK, const at::Tensor& sin_TK, double eps) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x_TD, gain_D, cos_TK, sin_TK});
    context->saved_data["eps"] = eps;
    return call_forward(x_TD, gain_D, cos_TK, sin_TK, eps);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    auto [grad_x, grad_gain] = call_backward(grads[0], saved[0], saved[1], saved[2], saved[3],
                                             context->saved_data["eps"].toDouble());
    return {grad_x, grad_gain, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor rotate(const at::Tensor& x_THK, const at::Tensor& cos_TK, const at::Tensor& sin_TK) {
  const at::Tensor x = x_THK.to(cos_TK.scalar_type());
  const auto halves = x.chunk(2, -1);
  const at::Tensor turned = at::cat({halves[1].neg(), halves[0]}, -1);
  return (x * cos_TK.unsqueeze(1) + turned * sin_TK.unsqueeze(1)).to(x_THK.scalar_type());
}

}  // namespace

at::Tensor norm_rotary(const at::Tensor& x_TD, const at::Tensor& gain_D, const at::Tensor& cos_TK,
                       const at::Tensor& sin_TK, int64_t num_heads, double eps) {
  TORCH_CHECK(x_TD.dim() == 2 && x_TD.size(1) == num_heads * cos_TK.size(1) && cos_TK.size(1) % 2 == 0 &&
                  cos_TK.size(0) == x_TD.size(0) && sin_TK.sizes() == cos_TK.sizes(),
              "norm_rotary: expected x [T, D] and cos and sin [T, D / ", num_heads, "], got ", x_TD.sizes(),
              ", ", cos_TK.sizes(), " and ", sin_TK.sizes());
  const bool own = x_TD.scalar_type() == at::kFloat || x_TD.scalar_type() == at::kBFloat16;
  if (own) return NormRotaryFunction::apply(x_TD, gain_D, cos_TK, sin_TK, eps);
  const at::Tensor normal = at::layer_norm(x_TD, gain_D.sizes(), gain_D, {}, eps);
  return rotate(normal.view({x_TD.size(0), num_heads, cos_TK.size(1)}), cos_TK, sin_TK);
}

TORCH_LIBRARY_FRAGMENT(dtopp, m) {
  m.def(
      "norm_rotary_forward(Tensor x_TD, Tensor gain_D, Tensor cos_TK, Tensor sin_TK, float eps) -> "
      "Tensor y_THK");
  m.def(
      "norm_rotary_backward(Tensor grad_y_THK, Tensor x_TD, Tensor gain_D, Tensor cos_TK, Tensor sin_TK, "
      "float eps) -> (Tensor grad_x_TD, Tensor grad_gain_D)");
}

TORCH_LIBRARY_IMPL(dtopp, Autograd, m) {
  m.impl("norm_rotary_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("norm_rotary_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace dtopp
