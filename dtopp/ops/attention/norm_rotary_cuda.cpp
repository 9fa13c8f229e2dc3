#include "dtopp/ops/attention/norm_rotary_cuda.h"

#include "dtopp/ops/attention/norm_rotary.h"
#include "dtopp/ops/cuda/cuda_tensor.h"

namespace dtopp::ops {
namespace {

// Calls body(arguments of the kernels), whose tensors are contiguous.
template <typename Body>
void with_arguments(const Tensor& x_TD, const Tensor& gain_N, const Tensor& cos_TK, const Tensor& sin_TK,
                    double eps, bool centered, const Body& body) {
  const int64_t N = gain_N.size(0);
  TORCH_CHECK(N <= cuda::kWidestNorm, "norm_rotary: expected a gain of at most ", cuda::kWidestNorm,
              " numbers on a CUDA device, got ", N);
  const Tensor x = x_TD.contiguous(), gain = gain_N.contiguous(), cos = cos_TK.contiguous(),
               sin = sin_TK.contiguous();
  const auto run = [&](auto scalar) {
    using Scalar = decltype(scalar);
    body(cuda::NormRotary<Scalar>{cuda::read<Scalar>(x), cuda::read<Scalar>(gain), cuda::read<float>(cos),
                                  cuda::read<float>(sin), x.numel() / N, N, cos.size(1), x.size(1) / N,
                                  static_cast<float>(eps), centered});
  };
  if (x.scalar_type() == at::kFloat) return run(float{});
  run(cuda::Bfloat16{});
}

Tensor norm_rotary_cuda(const Tensor& x_TD, const Tensor& gain_N, const Tensor& cos_TK, const Tensor& sin_TK,
                        double eps, bool centered) {
  check_norm_rotary("norm_rotary_forward", x_TD, gain_N, cos_TK, sin_TK);
  const c10::DeviceGuard guard(x_TD.device());
  const int64_t width = cos_TK.size(1);
  Tensor y_THK = at::empty({x_TD.size(0), x_TD.size(1) / width, width}, x_TD.options());
  with_arguments(x_TD, gain_N, cos_TK, sin_TK, eps, centered,
                 [&]<typename Scalar>(const cuda::NormRotary<Scalar>& in) {
                   cuda::norm_rotary(in, cuda::write<Scalar>(y_THK), cuda::current_stream(x_TD));
                 });
  return y_THK;
}

std::tuple<Tensor, Tensor> norm_rotary_backward_cuda(const Tensor& grad_y, const Tensor& x_TD,
                                                     const Tensor& gain_N, const Tensor& cos_TK,
                                                     const Tensor& sin_TK, double eps, bool centered) {
  check_norm_rotary_backward(grad_y, x_TD, gain_N, cos_TK, sin_TK);
  const c10::DeviceGuard guard(x_TD.device());
  const Tensor grad_y_THK = grad_y.contiguous();
  Tensor grad_x_TD = at::empty(x_TD.sizes(), x_TD.options()), grad_gain_BN;
  with_arguments(
      x_TD, gain_N, cos_TK, sin_TK, eps, centered, [&]<typename Scalar>(const cuda::NormRotary<Scalar>& in) {
        grad_gain_BN =
            at::empty({cuda::norm_rotary_blocks(in.rows), in.hidden}, x_TD.options().dtype(at::kFloat));
        cuda::norm_rotary_backward(in, cuda::read<Scalar>(grad_y_THK), cuda::write<Scalar>(grad_x_TD),
                                   cuda::write<float>(grad_gain_BN), cuda::current_stream(x_TD));
      });
  return {grad_x_TD, grad_gain_BN.sum(0).to(gain_N.scalar_type())};
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CUDA, m) {
  m.impl("norm_rotary_forward", norm_rotary_cuda);
  m.impl("norm_rotary_backward", norm_rotary_backward_cuda);
}

}  // namespace dtopp::ops
