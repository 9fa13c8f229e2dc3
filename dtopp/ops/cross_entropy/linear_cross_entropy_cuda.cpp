// Processes one chunk of tokens at a time: one product forms its fp32 logits. One kernel computes their
// logsumexp and the gradient of the loss. Two more products give the gradient of x and the weight's gradient,
// which is accumulated in fp32 over the chunks. The host reads nothing.
#include "dtopp/ops/cross_entropy/linear_cross_entropy_cuda.h"

#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/cross_entropy/linear_cross_entropy.h"
#include "dtopp/ops/cross_entropy/linear_cross_entropy_chunks_cuda.h"
#include "dtopp/ops/cuda/cuda_tensor.h"

namespace dtopp::ops {
namespace cuda {
namespace {

constexpr int64_t kLogitBytes = 1LL << 30;

// Returns a b in fp32 (f64 for f64). Tests run this on a CPU, which has no product of bf16 matrices with an
// fp32 result.
Tensor multiply_in_real(const Tensor& a, const Tensor& b) {
  if (a.scalar_type() != at::kBFloat16) return at::mm(a, b);
  return a.is_cuda() ? at::mm(a, b, at::kFloat) : at::mm(a.to(at::kFloat), b.to(at::kFloat));
}

// sum += a b
void add_product(Tensor& sum, const Tensor& a, const Tensor& b) {
  if (a.scalar_type() == at::kBFloat16 && a.is_cuda()) {
    at::addmm_out(sum, sum, a, b, at::kFloat);
  } else {
    sum.addmm_(a.to(sum.scalar_type()), b.to(sum.scalar_type()));
  }
}

template <typename Real>
LogitRows<Real> rows_of(const Tensor& logits_NV, const Tensor& targets_T, int64_t first) {
  return {read<Real>(logits_NV), read<int64_t>(targets_T) + first, logits_NV.size(0), logits_NV.size(1),
          first};
}

}  // namespace

int64_t tokens_per_chunk(int64_t tokens, int64_t vocabulary, at::ScalarType logits) {
  const int64_t row_bytes = std::max<int64_t>(vocabulary, 1) * static_cast<int64_t>(c10::elementSize(logits));
  const int64_t most = std::max<int64_t>(kLogitBytes / row_bytes, 1);
  const int64_t chunks = std::max<int64_t>((tokens + most - 1) / most, 1);
  return std::max<int64_t>((tokens + chunks - 1) / chunks, 1);
}

LossOutputs form_loss(const LossInputs& in, int64_t chunk) {
  const int64_t tokens = in.x_TD.size(0);
  const auto real = in.x_TD.options().dtype(accumulator_type(in.x_TD)), f64 = real.dtype(at::kDouble);
  const Tensor counted = in.targets_T.ne(in.ignore_index).sum().clamp_min(1);
  const Tensor nll_T = at::empty({tokens}, f64), z_T = at::empty({tokens}, f64);
  const auto room = [&](bool needed, const Tensor& like, const at::TensorOptions& options) {
    return needed ? at::zeros(like.sizes(), options) : at::empty({0}, options);
  };
  Tensor grad_x_TD = room(in.need_x, in.x_TD, in.x_TD.options());
  Tensor grad_weight_VD = room(in.need_weight, in.weight_VD, real);
  for (int64_t first = 0; first < tokens; first += chunk) {
    const int64_t last = std::min(first + chunk, tokens);
    const Tensor x_ND = in.x_TD.slice(0, first, last);
    const Tensor logits_NV = multiply_in_real(x_ND, in.weight_VD.t());
    Tensor gradient_NV;
    if (in.need_x || in.need_weight) gradient_NV = at::empty(logits_NV.sizes(), in.x_TD.options());
    dispatch(in.x_TD, [&](auto scalar) {
      using Scalar = decltype(scalar);
      form_loss_rows<Scalar>({rows_of<Accumulator<Scalar>>(logits_NV, in.targets_T, first), in.ignore_index,
                              in.z_weight, read<int64_t>(counted), write<double>(nll_T) + first,
                              write<double>(z_T) + first, write_if<Scalar>(gradient_NV)},
                             current_stream(in.x_TD));
    });
    if (in.need_weight) add_product(grad_weight_VD, gradient_NV.t(), x_ND);
    if (!in.need_x) continue;
    Tensor grad_x_ND = grad_x_TD.slice(0, first, last);
    at::mm_out(grad_x_ND, gradient_NV, in.weight_VD);
  }
  const Tensor nll = nll_T.sum().div_(counted), z = z_T.sum().div_(counted);
  const auto as_real = [&](const Tensor& mean) { return mean.to(accumulator_type(in.x_TD)); };
  return {as_real(nll + in.z_weight * z), as_real(nll), as_real(z), grad_x_TD,
          grad_weight_VD.to(in.weight_VD.scalar_type())};
}

}  // namespace cuda

namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> forward_cuda(const Tensor& x_TD, const Tensor& weight_VD,
                                                                const Tensor& targets_T, double z_weight,
                                                                int64_t ignore_index, bool need_x,
                                                                bool need_weight) {
  check_linear_cross_entropy("linear_cross_entropy_forward", x_TD, weight_VD, targets_T);
  const c10::DeviceGuard guard(x_TD.device());
  const int64_t chunk = cuda::tokens_per_chunk(x_TD.size(0), weight_VD.size(0), accumulator_type(x_TD));
  const cuda::LossOutputs out =
      cuda::form_loss({x_TD.contiguous(), weight_VD.contiguous(), targets_T.contiguous(), z_weight,
                       ignore_index, need_x, need_weight},
                      chunk);
  return {out.loss, out.nll, out.z, out.grad_x_TD, out.grad_weight_VD};
}

std::tuple<Tensor, Tensor> log_probs_cuda(const Tensor& x, const Tensor& weight, const Tensor& targets) {
  check_linear_cross_entropy("token_log_probs", x, weight, targets);
  const c10::DeviceGuard guard(x.device());
  const Tensor x_TD = x.contiguous(), weight_DV = weight.contiguous().t(), targets_T = targets.contiguous();
  const int64_t tokens = x.size(0);
  const auto real = x.options().dtype(accumulator_type(x));
  Tensor log_probs_T = at::empty({tokens}, real), greedy_T = at::empty({tokens}, real.dtype(at::kLong));
  const int64_t chunk = cuda::tokens_per_chunk(tokens, weight.size(0), accumulator_type(x));
  for (int64_t first = 0; first < tokens; first += chunk) {
    const Tensor logits_NV =
        cuda::multiply_in_real(x_TD.slice(0, first, std::min(first + chunk, tokens)), weight_DV);
    cuda::dispatch_real(logits_NV, [&](auto number) {
      using Real = decltype(number);
      cuda::form_log_probs<Real>(
          {cuda::rows_of<Real>(logits_NV, targets_T, first), cuda::write<Real>(log_probs_T) + first,
           cuda::write<int64_t>(greedy_T) + first},
          cuda::current_stream(x));
    });
  }
  return {log_probs_T, greedy_T};
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CUDA, m) {
  m.impl("linear_cross_entropy_forward", forward_cuda);
  m.impl("token_log_probs", log_probs_cuda);
}

}  // namespace dtopp::ops
