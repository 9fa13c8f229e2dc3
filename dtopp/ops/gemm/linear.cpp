#include "dtopp/ops/gemm/linear.h"

#include <ATen/native/CPUBlas.h>

#include "dtopp/ops/core/simd.h"
#include "dtopp/ops/gemm/dot_products.h"
#include "dtopp/ops/gemm/linear_cpu.h"

namespace dtopp::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// y = x W^T on packed tiles. It saves only its inputs. A bf16 product is formed in fp32 and rounded once.
struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x, weight});
    const at::Tensor x_TD = x.reshape({-1, x.size(-1)}).contiguous();
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = weight.size(0);
    return multiply_transposed_cpu(x_TD, weight.contiguous(), weight.scalar_type()).view(sizes);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor grad_y_TN = grads[0].reshape({-1, weight.size(0)}).contiguous();
    at::Tensor grad_x, grad_weight;
    if (context->needs_input_grad(0)) grad_x = multiply_cpu(grad_y_TN, weight.contiguous()).view(x.sizes());
    if (context->needs_input_grad(1)) {
      grad_weight = multiply_left_transposed_cpu(grad_y_TN, x.reshape({-1, x.size(-1)}).contiguous());
    }
    return {grad_x, grad_weight};
  }
};

void check_linear(const at::Tensor& x, const at::Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(1),
              "linear: expected x [..., D] and weight [N, D], got ", x.sizes(), " and ", weight.sizes());
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "linear: expected one dtype, got x ", x.scalar_type(),
              " and weight ", weight.scalar_type());
}

}  // namespace

bool has_bf16_matmul(const at::Device& device) { return !device.is_cpu() || has_avx512_bf16() || has_amx(); }

bool has_amx() {
  static const bool has = at::native::cpublas::could_pack(at::kBFloat16);
  return has;
}

bool multiplies_on_tiles(const at::Tensor& x) {
  if (!x.is_cpu()) return false;
  if (x.scalar_type() == at::kBFloat16) return !has_bf16_matmul(x.device());
  return x.scalar_type() == at::kFloat;
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight) {
  check_linear(x, weight);
  return multiplies_on_tiles(x) ? LinearFunction::apply(x, weight) : at::linear(x, weight);
}

std::vector<at::Tensor> linear_by_row(const at::Tensor& x_TD, at::TensorList weights, at::ScalarType type) {
  for (const at::Tensor& weight_ND : weights) check_linear(x_TD, weight_ND);
  if (DotProducts::multiply_rows_of(x_TD, x_TD.size(0))) return multiply_by_dot_products(x_TD, weights, type);
  const bool converts = type != x_TD.scalar_type();
  std::vector<at::Tensor> products;
  for (const at::Tensor& weight_ND : weights) {
    if (multiplies_on_tiles(x_TD) || (converts && x_TD.is_cpu()))
      products.push_back(multiply_transposed_cpu(x_TD.contiguous(), weight_ND.contiguous(), type));
    else
      products.push_back(converts ? at::mm(x_TD, weight_ND.t(), type) : at::linear(x_TD, weight_ND));
  }
  return products;
}

}  // namespace dtopp::ops
