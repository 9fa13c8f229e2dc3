// moe_ffn on a CUDA device: the pairs, then gathered rows through two products with an activation between
// (forward), and their gradients. What is saved is the pre-activations alone; gathered rows live for one
// product. With max_pairs nothing is read on the host (bf16 of aligned widths on compute capability 9.0).
#include "dtopp/ops/moe_ffn_kernel.h"
#include "dtopp/ops/moe_ffn_pairs_cuda.h"

namespace dtopp {
namespace {

using cuda::Pairs;

at::Tensor activate(const Pairs& pairs, const at::Tensor& pre_AG) {
  const int64_t ffn = pre_AG.size(1) / 2;
  at::Tensor act_AF = at::empty({pairs.capacity(), ffn}, pre_AG.options());
  cuda::dispatch(pre_AG, [&](auto scalar) {
    using Scalar = decltype(scalar);
    cuda::swiglu(cuda::read<Scalar>(pre_AG), pairs.rows(), ffn, cuda::write<Scalar>(act_AF),
                 cuda::current_stream(pre_AG));
  });
  return act_AF;
}

// (y_TD, pre_activations_AG)
std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& gates,
                                           const at::Tensor& gate_up, const at::Tensor& down,
                                           int64_t max_pairs) {
  const c10::DeviceGuard guard(x.device());
  const at::Tensor x_TD = x.contiguous(), gates_TE = gates.contiguous();
  const at::Tensor gate_up_EGD = gate_up.contiguous(), down_EDF = down.contiguous();
  const Pairs pairs =
      cuda::make_pairs(gates_TE, max_pairs, cuda::takes_grouped_mm(x_TD, gate_up_EGD, down_EDF));
  if (pairs.capacity() == 0)
    return {at::zeros(x.sizes(), x.options()), at::empty({0, gate_up.size(1)}, x.options())};
  at::Tensor pre_AG =
      cuda::multiply_pairs(pairs, cuda::gather_pairs(pairs, x_TD), gate_up_EGD.transpose(1, 2));
  const at::Tensor out_AD = cuda::multiply_pairs(pairs, activate(pairs, pre_AG), down_EDF.transpose(1, 2));
  return {cuda::sum_pairs(pairs, out_AD, gates_TE), pre_AG};
}

// Of moe_ffn_forward's pairs_A2 the length alone: the room for pairs, more than none where there are any.
std::tuple<at::Tensor, at::Tensor> moe_ffn_forward_cuda(const at::Tensor& x_TD, const at::Tensor& gates_TE,
                                                        const at::Tensor& pairs_A2,
                                                        const at::Tensor& gate_up_proj,
                                                        const at::Tensor& down_proj) {
  check_moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj);
  if (pairs_A2.size(0) == 0)
    return {at::zeros(x_TD.sizes(), x_TD.options()), at::empty({0, gate_up_proj.size(1)}, x_TD.options())};
  return forward(x_TD, gates_TE, gate_up_proj, down_proj, pairs_A2.size(0));
}

at::Tensor moe_ffn_cuda(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                        const at::Tensor& down_proj, int64_t max_pairs) {
  check_moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj);
  return std::get<0>(forward(x_TD, gates_TE, gate_up_proj, down_proj, max_pairs));
}

// What the activation's backward pass gives for each pair.
struct PairGradients {
  at::Tensor d_pre_AG, scaled_AF, grad_gate_A;
};

PairGradients activation_backward(const Pairs& pairs, const at::Tensor& pre_AG, const at::Tensor& da_AF) {
  PairGradients out{at::empty_like(pre_AG), at::empty_like(da_AF), at::empty_like(pairs.gate_A)};
  cuda::dispatch(pre_AG, [&](auto scalar) {
    using Scalar = decltype(scalar);
    using Real = cuda::Accumulator<Scalar>;
    cuda::swiglu_backward<Scalar>(
        {cuda::read<Scalar>(pre_AG), cuda::read<Scalar>(da_AF), cuda::read<Real>(pairs.gate_A), da_AF.size(1),
         cuda::write<Scalar>(out.d_pre_AG), cuda::write<Scalar>(out.scaled_AF),
         cuda::write<Real>(out.grad_gate_A)},
        pairs.rows(), cuda::current_stream(pre_AG));
  });
  return out;
}

at::Tensor gate_gradients(const Pairs& pairs, const at::Tensor& grad_gate_A) {
  at::Tensor grad_gates_TE = at::empty(pairs.position_TE.sizes(), grad_gate_A.options());
  const auto spread = [&](auto real) {
    using Real = decltype(real);
    cuda::spread_gate_gradients(cuda::read<Real>(grad_gate_A), cuda::read<int32_t>(pairs.position_TE),
                                grad_gates_TE.numel(), cuda::write<Real>(grad_gates_TE),
                                cuda::current_stream(grad_gate_A));
  };
  if (grad_gate_A.scalar_type() == at::kDouble) {
    spread(double{});
  } else {
    spread(float{});
  }
  return grad_gates_TE;
}

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

Gradients zero_gradients(const std::array<at::Tensor, 4>& inputs, std::array<bool, 4> needed) {
  const auto zeros = [&](size_t i) {
    return needed[i] ? at::zeros(inputs[i].sizes(), inputs[i].options()) : at::Tensor();
  };
  return {zeros(0), zeros(1), zeros(2), zeros(3)};
}

Gradients moe_ffn_backward_cuda(const at::Tensor& grad_y_TD, const at::Tensor& x_TD,
                                const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                                const at::Tensor& down_proj, const at::Tensor& pre_activations_AG,
                                std::array<bool, 4> needed) {
  const c10::DeviceGuard guard(x_TD.device());
  if (pre_activations_AG.size(0) == 0)
    return zero_gradients({x_TD, gates_TE, gate_up_proj, down_proj}, needed);
  const at::Tensor gate_up_EGD = gate_up_proj.contiguous(), down_EDF = down_proj.contiguous();
  const at::Tensor pre_AG = pre_activations_AG.contiguous();
  const bool grouped = cuda::takes_grouped_mm(x_TD, gate_up_EGD, down_EDF);
  const Pairs pairs = cuda::make_pairs(gates_TE.contiguous(), pre_AG.size(0), grouped);
  at::Tensor grad_x_TD, grad_gates_TE, grad_gate_up, grad_down, d_pre_AG;
  {
    const at::Tensor dy_AD = cuda::gather_pairs(pairs, grad_y_TD.contiguous());
    const PairGradients grad =
        activation_backward(pairs, pre_AG, cuda::multiply_pairs(pairs, dy_AD, down_EDF));
    if (needed[1]) grad_gates_TE = gate_gradients(pairs, grad.grad_gate_A);
    if (needed[3]) grad_down = cuda::sum_pair_products(pairs, dy_AD, grad.scaled_AF);
    d_pre_AG = grad.d_pre_AG;
  }
  if (needed[0]) {
    grad_x_TD = cuda::sum_pairs(pairs, cuda::multiply_pairs(pairs, d_pre_AG, gate_up_EGD), at::Tensor());
  }
  if (needed[2]) {
    grad_gate_up = cuda::sum_pair_products(pairs, d_pre_AG, cuda::gather_pairs(pairs, x_TD.contiguous()));
  }
  return {grad_x_TD, grad_gates_TE, grad_gate_up, grad_down};
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CUDA, m) {
  m.impl("moe_ffn", moe_ffn_cuda);
  m.impl("moe_ffn_forward", moe_ffn_forward_cuda);
  m.impl("moe_ffn_backward", moe_ffn_backward_cuda);
}

}  // namespace dtopp
