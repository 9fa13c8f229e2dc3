#include "dtopp/ops/attention/norm_rotary_cuda.h"

#include "dtopp/ops/attention/norm_rotary.h"
#include "dtopp/ops/cuda/cuda_tensor.h"

namespace dtopp::ops {
namespace {

// All tensors are contiguous.
struct Inputs {
  at::Tensor x_TD, gain_N, cos_TK, sin_TK;
  double eps;
  bool centered;

  template <typename Scalar>
  cuda::NormRotary<Scalar> kernel() const {
    return {cuda::read<Scalar>(x_TD),
            cuda::read<Scalar>(gain_N),
            cuda::read<float>(cos_TK),
            cuda::read<float>(sin_TK),
            x_TD.numel() / gain_N.size(0),
            gain_N.size(0),
            cos_TK.size(1),
            x_TD.size(1) / gain_N.size(0),
            static_cast<float>(eps),
            centered};
  }
};

Inputs inputs_of(const at::Tensor& x_TD, const at::Tensor& gain_N, const at::Tensor& cos_TK,
                 const at::Tensor& sin_TK, double eps, bool centered) {
  TORCH_CHECK(gain_N.size(0) <= cuda::kWidestNorm, "norm_rotary: expected a gain of at most ",
              cuda::kWidestNorm, " numbers on a CUDA device, got ", gain_N.size(0));
  return {x_TD.contiguous(), gain_N.contiguous(), cos_TK.contiguous(), sin_TK.contiguous(), eps, centered};
}

template <typename Body>
void dispatch(const at::Tensor& x_TD, const Body& body) {
  if (x_TD.scalar_type() == at::kFloat) return body(float{});
  body(cuda::Bfloat16{});
}

at::Tensor norm_rotary_cuda(const at::Tensor& x_TD, const at::Tensor& gain_N, const at::Tensor& cos_TK,
                            const at::Tensor& sin_TK, double eps, bool centered) {
  check_norm_rotary("norm_rotary_forward", x_TD, gain_N, cos_TK, sin_TK);
  const c10::DeviceGuard guard(x_TD.device());
  const Inputs in = inputs_of(x_TD, gain_N, cos_TK, sin_TK, eps, centered);
  const int64_t width = cos_TK.size(1);
  at::Tensor y_THK = at::empty({x_TD.size(0), x_TD.size(1) / width, width}, x_TD.options());
  dispatch(x_TD, [&](auto scalar) {
    using Scalar = decltype(scalar);
    cuda::norm_rotary(in.kernel<Scalar>(), cuda::write<Scalar>(y_THK), cuda::current_stream(x_TD));
  });
  return y_THK;
}

std::tuple<at::Tensor, at::Tensor> norm_rotary_backward_cuda(const at::Tensor& grad_y, const at::Tensor& x_TD,
                                                             const at::Tensor& gain_N,
                                                             const at::Tensor& cos_TK,
                                                             const at::Tensor& sin_TK, double eps,
                                                             bool centered) {
  check_norm_rotary_backward(grad_y, x_TD, gain_N, cos_TK, sin_TK);
  const c10::DeviceGuard guard(x_TD.device());
  const Inputs in = inputs_of(x_TD, gain_N, cos_TK, sin_TK, eps, centered);
  const at::Tensor grad_y_THK = grad_y.contiguous();
  at::Tensor grad_x_TD = at::empty(x_TD.sizes(), x_TD.options());
  const int64_t size = gain_N.size(0);
  const at::Tensor grad_gain_BN =
      at::empty({cuda::norm_rotary_blocks(x_TD.numel() / size), size}, x_TD.options().dtype(at::kFloat));
  dispatch(x_TD, [&](auto scalar) {
    using Scalar = decltype(scalar);
    cuda::norm_rotary_backward(in.kernel<Scalar>(), cuda::read<Scalar>(grad_y_THK),
                               cuda::write<Scalar>(grad_x_TD), cuda::write<float>(grad_gain_BN),
                               cuda::current_stream(x_TD));
  });
  return {grad_x_TD, grad_gain_BN.sum(0).to(gain_N.scalar_type())};
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CUDA, m) {
  m.impl("norm_rotary_forward", norm_rotary_cuda);
  m.impl("norm_rotary_backward", norm_rotary_backward_cuda);
}

}  // namespace dtopp::ops
