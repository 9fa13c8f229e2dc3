#include "dtopp/ops/attention/norm_rotary.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/core/check_tensor.h"

namespace dtopp::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Forward = at::Tensor(const at::Tensor& x_TD, const at::Tensor& gain_N, const at::Tensor& cos_TK,
                           const at::Tensor& sin_TK, double eps, bool centred);
using Backward = std::tuple<at::Tensor, at::Tensor>(const at::Tensor& grad_y_THK, const at::Tensor& x_TD,
                                                    const at::Tensor& gain_N, const at::Tensor& cos_TK,
                                                    const at::Tensor& sin_TK, double eps, bool centred);

// Saves only its inputs for the backward pass.
struct NormRotaryFunction : torch::autograd::Function<NormRotaryFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_TD, const at::Tensor& gain_N,
                            const at::Tensor& cos_TK, const at::Tensor& sin_TK, double eps, bool centred) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x_TD, gain_N, cos_TK, sin_TK});
    context->saved_data["eps"] = eps;
    context->saved_data["centred"] = centred;
    return call_op<"dtopp::norm_rotary_forward", Forward>(x_TD, gain_N, cos_TK, sin_TK, eps, centred);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    auto [grad_x, grad_gain] = call_op<"dtopp::norm_rotary_backward", Backward>(
        grads[0], saved[0], saved[1], saved[2], saved[3], context->saved_data["eps"].toDouble(),
        context->saved_data["centred"].toBool());
    return {grad_x, grad_gain, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor rotate(const at::Tensor& x_THK, const at::Tensor& cos_TK, const at::Tensor& sin_TK) {
  const at::Tensor x = x_THK.to(cos_TK.scalar_type());
  const auto halves = x.chunk(2, -1);
  const at::Tensor rotated = at::cat({halves[1].neg(), halves[0]}, -1);
  return (x * cos_TK.unsqueeze(1) + rotated * sin_TK.unsqueeze(1)).to(x_THK.scalar_type());
}

}  // namespace

void check_norm_rotary(const char* op, const at::Tensor& x_TD, const at::Tensor& gain_N,
                       const at::Tensor& cos_TK, const at::Tensor& sin_TK) {
  const auto dtype = x_TD.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16, op,
              ": expected x of dtype float32 or bfloat16, got ", dtype);
  TORCH_CHECK(x_TD.dim() == 2, op, ": expected x of shape [tokens, hidden], got ", x_TD.sizes());
  const int64_t tokens = x_TD.size(0), hidden = x_TD.size(1);
  const Expected like_x{dtype, x_TD.device()}, angles{at::kFloat, x_TD.device()};
  const int64_t width = cos_TK.dim() == 2 ? cos_TK.size(1) : 0;
  TORCH_CHECK(width > 0 && width % 2 == 0 && hidden % width == 0, op, ": expected cos of shape [", tokens,
              ", K], K even and a divisor of ", hidden, ", got ", cos_TK.sizes());
  const int64_t size = gain_N.dim() == 1 ? gain_N.size(0) : 0;
  TORCH_CHECK(size > 0 && size % width == 0 && hidden % size == 0, op,
              ": expected gain of shape [N], N a divisor of ", hidden, " and a multiple of ", width, ", got ",
              gain_N.sizes());
  check_tensor(op, "gain", gain_N, like_x, {size});
  check_tensor(op, "cos", cos_TK, angles, {tokens, width});
  check_tensor(op, "sin", sin_TK, angles, {tokens, width});
}

void check_norm_rotary_backward(const at::Tensor& grad_y_THK, const at::Tensor& x_TD,
                                const at::Tensor& gain_N, const at::Tensor& cos_TK,
                                const at::Tensor& sin_TK) {
  check_norm_rotary("norm_rotary_backward", x_TD, gain_N, cos_TK, sin_TK);
  const int64_t width = cos_TK.size(1);
  check_tensor("norm_rotary_backward", "grad_y", grad_y_THK, {x_TD.scalar_type(), x_TD.device()},
               {x_TD.size(0), x_TD.size(1) / width, width});
}

at::Tensor norm_rotary(const at::Tensor& x_TD, const at::Tensor& gain_N, const at::Tensor& cos_TK,
                       const at::Tensor& sin_TK, int64_t num_heads, double eps, bool centred) {
  TORCH_CHECK(x_TD.dim() == 2 && x_TD.size(1) == num_heads * cos_TK.size(1) && cos_TK.size(1) % 2 == 0 &&
                  cos_TK.size(0) == x_TD.size(0) && sin_TK.sizes() == cos_TK.sizes() && gain_N.dim() == 1 &&
                  gain_N.size(0) > 0 && x_TD.size(1) % gain_N.size(0) == 0,
              "norm_rotary: expected x [T, D], gain of a divisor of D, and cos and sin [T, D / ", num_heads,
              "], got ", x_TD.sizes(), ", ", gain_N.sizes(), ", ", cos_TK.sizes(), " and ", sin_TK.sizes());
  const bool own = x_TD.scalar_type() == at::kFloat || x_TD.scalar_type() == at::kBFloat16;
  if (own && !at::GradMode::is_enabled())
    return call_op<"dtopp::norm_rotary_forward", Forward>(x_TD, gain_N, cos_TK, sin_TK, eps, centred);
  if (own) return NormRotaryFunction::apply(x_TD, gain_N, cos_TK, sin_TK, eps, centred);
  const at::Tensor x_TGN = x_TD.view({x_TD.size(0), x_TD.size(1) / gain_N.size(0), gain_N.size(0)});
  const at::Tensor normal = centred ? at::layer_norm(x_TGN, gain_N.sizes(), gain_N, {}, eps)
                                    : at::rms_norm(x_TGN, gain_N.sizes(), gain_N, eps);
  return rotate(normal.view({x_TD.size(0), num_heads, cos_TK.size(1)}), cos_TK, sin_TK);
}

TORCH_LIBRARY_FRAGMENT(dtopp, m) {
  m.def(
      "norm_rotary_forward(Tensor x_TD, Tensor gain_N, Tensor cos_TK, Tensor sin_TK, float eps, "
      "bool centred=True) -> "
      "Tensor y_THK");
  m.def(
      "norm_rotary_backward(Tensor grad_y_THK, Tensor x_TD, Tensor gain_N, Tensor cos_TK, Tensor sin_TK, "
      "float eps, bool centred=True) -> (Tensor grad_x_TD, Tensor grad_gain_N)");
}

TORCH_LIBRARY_IMPL(dtopp, Autograd, m) {
  m.impl("norm_rotary_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("norm_rotary_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace dtopp::ops
