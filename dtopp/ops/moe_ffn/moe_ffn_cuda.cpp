// moe_ffn on a CUDA device. Forward: find the pairs, then run their rows through two GEMMs with an activation
// in between. Backward: compute the gradients of both. Only the pre-activations are saved.
//
// With capacity the host reads nothing, with two exceptions: the reference path of GemmChoice, and torch's
// grouped GEMM on devices other than compute capability 9.0.
#include "dtopp/ops/moe_ffn/moe_ffn.h"
#include "dtopp/ops/moe_ffn/moe_ffn_pairs_cuda.h"

namespace dtopp::ops {
namespace {

using cuda::Pairs;

// Returns (y_TD, pre_activations_AG).
TensorPair forward(const Tensor& x, const Tensor& gates, const Tensor& gate_up, const Tensor& down,
                   int64_t capacity) {
  const c10::DeviceGuard guard(x.device());
  const Tensor x_TD = cuda::aligned(x), gates_TE = gates.contiguous();
  const Tensor gate_up_EGD = gate_up.contiguous(), down_EDF = down.contiguous();
  const Pairs pairs = cuda::make_pairs(gates_TE, capacity, cuda::choose_gemms(gate_up_EGD, down_EDF));
  if (pairs.capacity() == 0)
    return {at::zeros(x.sizes(), x.options()), at::empty({0, gate_up.size(1)}, x.options())};
  cuda::ActivatedPairs activated = cuda::activate_pairs(pairs, x_TD, gate_up_EGD);
  const Tensor out_AD = cuda::project_pairs(pairs, activated.act_AF, down_EDF);
  activated.act_AF.reset();
  return {cuda::sum_pairs(pairs, out_AD, gates_TE), activated.pre_AG};
}

// Uses only the length of pairs_A2, as the capacity. It is 0 only if there are no pairs.
TensorPair moe_ffn_forward_cuda(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& pairs_A2,
                                const Tensor& gate_up_proj, const Tensor& down_proj) {
  check_moe_ffn_forward("moe_ffn_forward", x_TD, gates_TE, pairs_A2, gate_up_proj, down_proj);
  if (pairs_A2.size(0) == 0)
    return {at::zeros(x_TD.sizes(), x_TD.options()), at::empty({0, gate_up_proj.size(1)}, x_TD.options())};
  return forward(x_TD, gates_TE, gate_up_proj, down_proj, pairs_A2.size(0));
}

Tensor moe_ffn_pre_activations_cuda(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& pairs_A2,
                                    const Tensor& gate_up_proj, const Tensor& down_proj) {
  check_moe_ffn_forward("moe_ffn_pre_activations", x_TD, gates_TE, pairs_A2, gate_up_proj, down_proj);
  const int64_t capacity = pairs_A2.size(0);
  if (capacity == 0) return at::empty({0, gate_up_proj.size(1)}, x_TD.options());
  const c10::DeviceGuard guard(x_TD.device());
  const Tensor gate_up_EGD = gate_up_proj.contiguous(), down_EDF = down_proj.contiguous();
  const Pairs pairs =
      cuda::make_pairs(gates_TE.contiguous(), capacity, cuda::choose_gemms(gate_up_EGD, down_EDF));
  return cuda::activate_pairs(pairs, cuda::aligned(x_TD), gate_up_EGD).pre_AG;
}

Tensor moe_ffn_cuda(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& gate_up_proj,
                    const Tensor& down_proj, int64_t capacity, bool /*recompute*/) {
  check_moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj, capacity);
  return std::get<0>(forward(x_TD, gates_TE, gate_up_proj, down_proj, capacity));
}

Tensor gate_gradients(const Pairs& pairs, const Tensor& grad_gate_AP) {
  Tensor grad_gates_TE = at::empty(pairs.position_TE.sizes(), grad_gate_AP.options());
  cuda::dispatch_real(grad_gate_AP, [&](auto real) {
    using Real = decltype(real);
    cuda::spread_gate_gradients(cuda::read<Real>(grad_gate_AP), grad_gate_AP.size(1),
                                cuda::read<int32_t>(pairs.position_TE), grad_gates_TE.numel(),
                                cuda::write<Real>(grad_gates_TE), cuda::current_stream(grad_gate_AP));
  });
  return grad_gates_TE;
}

// Destinations of the weights' gradients.
struct AccumulationTargets {
  AccumulationTarget gate_up, down;
};

TensorQuadruple zero_gradients(const std::array<Tensor, 4>& inputs, std::array<bool, 4> needed,
                               const AccumulationTargets& targets) {
  const auto zeros = [&](size_t i) {
    return needed[i] ? at::zeros(inputs[i].sizes(), inputs[i].options()) : Tensor();
  };
  for (const AccumulationTarget& target : {targets.gate_up, targets.down})
    if (target.sum.defined() && !target.add) target.sum.zero_();
  return {zeros(0), zeros(1), targets.gate_up.sum.defined() ? Tensor() : zeros(2),
          targets.down.sum.defined() ? Tensor() : zeros(3)};
}

TensorQuadruple backward(const Tensor& grad_y_TD, const Tensor& x_TD, const Tensor& gates_TE,
                         const Tensor& gate_up_proj, const Tensor& down_proj,
                         const Tensor& pre_activations_AG, std::array<bool, 4> needed,
                         const AccumulationTargets& targets) {
  const c10::DeviceGuard guard(x_TD.device());
  if (pre_activations_AG.size(0) == 0)
    return zero_gradients({x_TD, gates_TE, gate_up_proj, down_proj}, needed, targets);
  const Tensor gate_up_EGD = gate_up_proj.contiguous(), down_EDF = down_proj.contiguous();
  const Tensor x = cuda::aligned(x_TD), dy_TD = cuda::aligned(grad_y_TD),
               pre_AG = cuda::aligned(pre_activations_AG);
  const Pairs pairs =
      cuda::make_pairs(gates_TE.contiguous(), pre_AG.size(0), cuda::choose_gemms(gate_up_EGD, down_EDF));
  Tensor grad_x_TD, grad_gates_TE, grad_gate_up, grad_down, d_pre_AG;
  {
    const cuda::ActivationGradient gradient = cuda::activation_gradient(pairs, dy_TD, pre_AG, down_EDF);
    if (needed[1]) grad_gates_TE = gate_gradients(pairs, gradient.grad_gate_AP);
    if (needed[3]) grad_down = cuda::down_gradient(pairs, dy_TD, gradient, targets.down);
    d_pre_AG = gradient.d_pre_AG;
  }
  if (needed[0])
    grad_x_TD = cuda::sum_pairs(pairs, cuda::input_gradient(pairs, d_pre_AG, gate_up_EGD), Tensor());
  if (needed[2]) grad_gate_up = cuda::gate_up_gradient(pairs, d_pre_AG, x, targets.gate_up);
  return {grad_x_TD, grad_gates_TE, grad_gate_up, grad_down};
}

TensorQuadruple moe_ffn_backward_cuda(const Tensor& grad_y_TD, const Tensor& x_TD, const Tensor& gates_TE,
                                      const Tensor& gate_up_proj, const Tensor& down_proj,
                                      const Tensor& pre_activations_AG, std::array<bool, 4> needed) {
  check_moe_ffn_backward("moe_ffn_backward", grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj,
                         pre_activations_AG);
  return backward(grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj, pre_activations_AG, needed, {});
}

TensorPair moe_ffn_backward_sums_cuda(const Tensor& grad_y_TD, const Tensor& x_TD, const Tensor& gates_TE,
                                      const Tensor& gate_up_proj, const Tensor& down_proj,
                                      const Tensor& pre_activations_AG, std::array<bool, 2> needed,
                                      const Tensor& gate_up_sum, const Tensor& down_sum,
                                      std::array<bool, 2> add) {
  check_moe_ffn_backward_sums(grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj, pre_activations_AG,
                              gate_up_sum, down_sum);
  for (const Tensor& sum : {gate_up_sum, down_sum})
    TORCH_CHECK(cuda::begins_aligned(sum), "moe_ffn_backward_sums: expected sums aligned to 16 bytes");
  const auto [grad_x_TD, grad_gates_TE, no_grad_gate_up, no_grad_down] =
      backward(grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj, pre_activations_AG,
               {needed[0], needed[1], true, true}, {{gate_up_sum, add[0]}, {down_sum, add[1]}});
  return {grad_x_TD, grad_gates_TE};
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CUDA, m) {
  m.impl("moe_ffn", moe_ffn_cuda);
  m.impl("moe_ffn_forward", moe_ffn_forward_cuda);
  m.impl("moe_ffn_pre_activations", moe_ffn_pre_activations_cuda);
  m.impl("moe_ffn_backward", moe_ffn_backward_cuda);
  m.impl("moe_ffn_backward_sums", moe_ffn_backward_sums_cuda);
}

}  // namespace dtopp::ops
