#include "dtopp/ops/route/route_cuda.h"

#include "dtopp/ops/cuda/cuda_tensor.h"
#include "dtopp/ops/route/cumulative_prob_bins.h"
#include "dtopp/ops/route/route.h"

namespace dtopp::ops {
namespace {

// A NaN threshold is not an error here, because the host reads no values. It selects one expert.
RouteTuple route_cuda(const Tensor& logits_TE, const Tensor& scale, const Tensor& threshold,
                      c10::string_view normalization, int64_t top_k, int64_t max_experts, bool renormalize,
                      const OptionalTensor& bias_E, c10::string_view bias_on, c10::string_view gate,
                      const OptionalTensor& cut_E) {
  check_route(logits_TE, scale, threshold, normalization, top_k, max_experts, renormalize, bias_E, bias_on,
              gate, cut_E);
  const c10::DeviceGuard guard(logits_TE.device());
  const int64_t tokens = logits_TE.size(0), experts = logits_TE.size(1);
  cuda::check_number_of_experts("route", experts);
  const auto dtype = accumulator_type(logits_TE);
  const auto real = logits_TE.options().dtype(dtype);
  const Tensor logits = logits_TE.contiguous(), theta = scale.to(dtype);
  const Tensor bias = kernel_bias(bias_E, bias_on), cut = cut_E ? cut_E->contiguous() : Tensor();
  const RouteRule rule = route_rule(normalization, experts, top_k, max_experts, renormalize,
                                    bias_on_of(bias_E, bias_on), gate_of(gate));
  Tensor gates_TE = at::empty({tokens, experts}, real);
  Tensor counts_E = at::zeros({experts}, real.dtype(at::kLong));
  Tensor histogram = at::zeros({experts + 1}, real.dtype(at::kLong));
  Tensor mean_prob_E = at::empty({experts}, real);
  Tensor entropy = at::empty({}, real), router_z = at::empty({}, real);
  Tensor mass = at::empty({2}, real.dtype(at::kLong));
  const Tensor sums = at::empty({experts + 4, cuda::route_blocks(tokens)}, real.dtype(at::kDouble));
  cuda::dispatch(logits, [&](auto scalar) {
    using Scalar = decltype(scalar);
    using Real = cuda::Accumulator<Scalar>;
    cuda::route_forward<Scalar>(
        {cuda::read<Scalar>(logits), cuda::read<Real>(theta), cuda::read<double>(threshold), tokens, experts,
         rule, cuda::read_if<Real>(bias), cuda::read_if<Real>(cut), cuda::write<Real>(gates_TE),
         cuda::write<int64_t>(counts_E), cuda::write<int64_t>(histogram), cuda::write<double>(sums),
         cuda::write<Real>(mean_prob_E), cuda::write<Real>(entropy), cuda::write<Real>(router_z),
         cuda::write<int64_t>(mass)},
        cuda::current_stream(logits));
  });
  return {gates_TE, counts_E, histogram, mean_prob_E, entropy, router_z, mass};
}

std::tuple<Tensor, Tensor> route_backward_cuda(const Tensor& logits_TE, const Tensor& scale,
                                               const Tensor& gates_TE, const OptionalTensor& grad_gates_TE,
                                               const OptionalTensor& grad_mean_prob_E,
                                               const OptionalTensor& grad_entropy,
                                               const OptionalTensor& grad_router_z,
                                               c10::string_view normalization, bool renormalize,
                                               c10::string_view gate) {
  check_route_backward(logits_TE, scale, gates_TE, grad_gates_TE, grad_mean_prob_E, grad_entropy,
                       grad_router_z, normalization);
  const c10::DeviceGuard guard(logits_TE.device());
  const auto dtype = accumulator_type(logits_TE);
  const auto real = logits_TE.options().dtype(dtype);
  const int64_t tokens = logits_TE.size(0), experts = logits_TE.size(1);
  cuda::check_number_of_experts("route_backward", experts);
  const auto plain = [](const OptionalTensor& grad) { return grad ? grad->contiguous() : Tensor(); };
  const Tensor logits = logits_TE.contiguous(), theta = scale.to(dtype), gates = gates_TE.contiguous();
  const Tensor grad_gates = plain(grad_gates_TE), grad_prob = plain(grad_mean_prob_E);
  const Tensor grad_h = plain(grad_entropy), grad_z = plain(grad_router_z);
  Tensor grad_logits_TE = at::empty({tokens, experts}, logits_TE.options());
  const Tensor grad_theta = at::empty({}, real);
  const Tensor sums = at::empty({cuda::route_blocks(tokens)}, real.dtype(at::kDouble));
  const RouteRule rule = route_rule(normalization, experts, /*top_k=*/0, /*max_experts=*/0, renormalize,
                                    BiasOn::kNothing, gate_of(gate));
  cuda::dispatch(logits, [&](auto scalar) {
    using Scalar = decltype(scalar);
    using Real = cuda::Accumulator<Scalar>;
    cuda::route_backward<Scalar>(
        {cuda::read<Scalar>(logits), cuda::read<Real>(theta), cuda::read<Real>(gates),
         cuda::read_if<Real>(grad_gates), cuda::read_if<Real>(grad_prob), cuda::read_if<Real>(grad_h),
         cuda::read_if<Real>(grad_z), tokens, experts, rule, cuda::write<Scalar>(grad_logits_TE),
         cuda::write<double>(sums), cuda::write<Real>(grad_theta)},
        cuda::current_stream(logits));
  });
  return {grad_logits_TE, grad_theta.to(scale.scalar_type())};
}

Tensor cumulative_prob_histogram_cuda(const Tensor& logits_TE, const Tensor& scale,
                                      c10::string_view normalization, int64_t max_experts, int64_t stride,
                                      int64_t zero_experts) {
  check_cumulative_prob_histogram(logits_TE, scale, normalization, max_experts, stride, zero_experts);
  const c10::DeviceGuard guard(logits_TE.device());
  cuda::check_number_of_experts("cumulative_prob_histogram", logits_TE.size(1));
  const Tensor logits = logits_TE.contiguous(), theta = scale.to(accumulator_type(logits_TE));
  Tensor counts = at::zeros({kCumulativeProbBins}, logits_TE.options().dtype(at::kLong));
  cuda::dispatch(logits, [&](auto scalar) {
    using Scalar = decltype(scalar);
    cuda::cumulative_prob_histogram<Scalar>(
        {cuda::read<Scalar>(logits), cuda::read<cuda::Accumulator<Scalar>>(theta), logits.size(0),
         logits.size(1), zero_experts, stride,
         route_rule(normalization, logits.size(1), /*top_k=*/0, max_experts, /*renormalize=*/false),
         cuda::write<int64_t>(counts)},
        cuda::current_stream(logits));
  });
  return counts;
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CUDA, m) {
  m.impl("cumulative_prob_histogram", cumulative_prob_histogram_cuda);
  m.impl("route", route_cuda);
  m.impl("route_backward", route_backward_cuda);
}

}  // namespace dtopp::ops
