#include "dtopp/ops/moe_ffn_cpu.h"

namespace dtopp {
namespace {

// One row of the backward pass through the activation: from da = dy W_down and the gate r to d pre, r * A
// (what the gradient of W_down needs) and the gate's gradient <da, A>, which is returned.
template <typename Scalar, typename Product, typename Real>
[[gnu::always_inline]] inline Real swiglu_backward(const Scalar* pre_G, const Product* da_F, Real r,
                                                   int64_t ffn, Product* d_pre_G, Product* scaled_F) {
  Real grad_gate = 0;
#pragma omp simd reduction(+ : grad_gate)
  for (int64_t f = 0; f < ffn; ++f) {
    const Real gate = load(pre_G[f]), up = load(pre_G[ffn + f]), da = load(da_F[f]);
    const Real sig = sigmoid(gate);
    const Real silu = gate * sig;
    grad_gate += da * silu * up;
    store(scaled_F + f, r * silu * up);
    store(d_pre_G + f, r * da * up * (sig + silu * (1 - sig)));
    store(d_pre_G + ffn + f, r * da * silu);
  }
  return grad_gate;
}

// The gradients asked for, as accumulated; the others undefined.
struct Gradients {
  at::Tensor x_TD, gates_TE, gate_up_proj, down_proj;
};

// Buffers for the rows of one expert.
struct BackwardBuffers {
  at::Tensor x_ND, dy_ND, dx_ND, da_NF, scaled_NF, d_pre_NG, gate_up_GD, down_DF;
};

BackwardBuffers backward_buffers(int64_t rows, int64_t hidden, int64_t ffn,
                                 const at::TensorOptions& product) {
  const auto make = [&](int64_t a, int64_t b) { return at::empty({a, b}, product); };
  return {make(rows, hidden), make(rows, hidden),  make(rows, hidden),    make(rows, ffn),
          make(rows, ffn),    make(rows, 2 * ffn), make(2 * ffn, hidden), make(hidden, ffn)};
}

// out[e] = left^T right, its rows shared among the threads.
template <typename Scalar, typename Product>
void weight_gradient(const at::Tensor& left_NM, const at::Tensor& right_NK, const at::Tensor& out_MK) {
  const int64_t rows = left_NM.size(1);
  for_row_blocks(rows, [&](int64_t begin, int64_t count) {
    at::Tensor out = out_MK.narrow(0, begin, count);
    const at::Tensor left = left_NM.narrow(1, begin, count).t();
    if constexpr (std::is_same_v<Scalar, Product>) {
      at::mm_out(out, left, right_NK);
    } else {
      const at::Tensor sum = at::mm(left, right_NK);
      convert(sum.const_data_ptr<Product>(), out.mutable_data_ptr<Scalar>(), sum.numel());
    }
  });
}

struct BackwardInputs {
  at::Tensor grad_y_TD, x_TD, gates_TE, pre_activations_AG;
};

template <typename Scalar, typename Product>
void backward_block(const BackwardInputs& in, const Assignment& pairs, int64_t e, int64_t begin, int64_t rows,
                    const at::Tensor& gate_up_GD, const at::Tensor& down_DF, const BackwardBuffers& buffers,
                    const Gradients& grad) {
  using Real = Accumulator<Scalar>;
  const int64_t hidden = in.x_TD.size(1), experts = in.gates_TE.size(1), ffn = down_DF.size(1);
  const int64_t first = pairs.offset_E1[e] + begin;
  const int64_t* tokens = pairs.token_A.data() + first;
  gather(in.grad_y_TD.const_data_ptr<Scalar>(), tokens, rows, hidden,
         row_start<Product>(buffers.dy_ND, begin));
  at::Tensor da_NF = row_block(buffers.da_NF, begin, rows);
  at::mm_out(da_NF, row_block(buffers.dy_ND, begin, rows), down_DF);
  const Scalar* pre_AG = row_start<Scalar>(in.pre_activations_AG, first);
  const Real* gates = in.gates_TE.const_data_ptr<Real>() + e;
  Real* grad_gates = grad.gates_TE.defined() ? grad.gates_TE.mutable_data_ptr<Real>() + e : nullptr;
  run_widest([&] {
    for (int64_t n = 0; n < rows; ++n) {
      const Real grad_gate = swiglu_backward(
          pre_AG + n * 2 * ffn, da_NF.const_data_ptr<Product>() + n * ffn, gates[tokens[n] * experts], ffn,
          row_start<Product>(buffers.d_pre_NG, begin + n), row_start<Product>(buffers.scaled_NF, begin + n));
      if (grad_gates != nullptr) grad_gates[tokens[n] * experts] = grad_gate;
    }
  });
  if (grad.gate_up_proj.defined()) {
    gather(in.x_TD.const_data_ptr<Scalar>(), tokens, rows, hidden, row_start<Product>(buffers.x_ND, begin));
  }
  if (!grad.x_TD.defined()) return;
  at::Tensor dx_ND = row_block(buffers.dx_ND, begin, rows);
  at::mm_out(dx_ND, row_block(buffers.d_pre_NG, begin, rows), gate_up_GD);
  scatter_add<Product, Real>(dx_ND.const_data_ptr<Product>(), tokens, rows, hidden, nullptr, 0,
                             grad.x_TD.mutable_data_ptr<Real>());
}

template <typename Scalar, typename Product>
void backward(const BackwardInputs& in, const Assignment& pairs, const at::Tensor& gate_up_proj,
              const at::Tensor& down_proj, const Gradients& grad) {
  const int64_t hidden = in.x_TD.size(1), experts = in.gates_TE.size(1), ffn = down_proj.size(2);
  const auto product = in.x_TD.options().dtype(c10::CppTypeToScalarType<Product>::value);
  const BackwardBuffers buffers = backward_buffers(pairs.most, hidden, ffn, product);
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t rows = pairs.count(e);
    if (rows == 0) {
      if (grad.gate_up_proj.defined()) grad.gate_up_proj.select(0, e).zero_();
      if (grad.down_proj.defined()) grad.down_proj.select(0, e).zero_();
      continue;
    }
    const at::Tensor gate_up_GD = expert_weight<Scalar, Product>(gate_up_proj, e, buffers.gate_up_GD);
    const at::Tensor down_DF = expert_weight<Scalar, Product>(down_proj, e, buffers.down_DF);
    for_row_blocks(rows, [&](int64_t begin, int64_t count) {
      backward_block<Scalar, Product>(in, pairs, e, begin, count, gate_up_GD, down_DF, buffers, grad);
    });
    if (grad.gate_up_proj.defined()) {
      weight_gradient<Scalar, Product>(row_block(buffers.d_pre_NG, 0, rows), row_block(buffers.x_ND, 0, rows),
                                       grad.gate_up_proj.select(0, e));
    }
    if (grad.down_proj.defined()) {
      weight_gradient<Scalar, Product>(row_block(buffers.dy_ND, 0, rows),
                                       row_block(buffers.scaled_NF, 0, rows), grad.down_proj.select(0, e));
    }
  }
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> moe_ffn_backward_cpu(
    const at::Tensor& grad_y_TD, const at::Tensor& x_TD, const at::Tensor& gates_TE,
    const at::Tensor& gate_up_proj, const at::Tensor& down_proj, const at::Tensor& pre_activations_AG,
    std::array<bool, 4> needed) {
  const auto sums = gates_TE.scalar_type();
  Gradients grad;
  if (needed[0]) grad.x_TD = at::zeros(x_TD.sizes(), x_TD.options().dtype(sums));
  if (needed[1]) grad.gates_TE = at::zeros(gates_TE.sizes(), gates_TE.options());
  if (needed[2]) grad.gate_up_proj = at::empty(gate_up_proj.sizes(), gate_up_proj.options());
  if (needed[3]) grad.down_proj = at::empty(down_proj.sizes(), down_proj.options());
  const Assignment pairs = assign(at::nonzero(gates_TE.detach().t()), gates_TE.size(1));
  const BackwardInputs in{plain(grad_y_TD), plain(x_TD), plain(gates_TE), plain(pre_activations_AG)};
  dispatch(x_TD, [&](auto scalar, auto product) {
    backward<decltype(scalar), decltype(product)>(in, pairs, plain(gate_up_proj), plain(down_proj), grad);
  });
  if (needed[0]) grad.x_TD = grad.x_TD.to(x_TD.scalar_type());
  return {grad.x_TD, grad.gates_TE, grad.gate_up_proj, grad.down_proj};
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CPU, m) { m.impl("moe_ffn_backward", moe_ffn_backward_cpu); }

}  // namespace dtopp
