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

struct BackwardInputs {
  at::Tensor grad_y_TD, x_TD, gates_TE, pre_activations_AG;
};

// The first four hold the rows of a group, which the weight gradients need; the last two a block for each
// thread.
struct BackwardBuffers {
  at::Tensor x_ND, dy_ND, scaled_NF, d_pre_NG;
  at::Tensor dx_ND, da_NF;
};

BackwardBuffers backward_buffers(int64_t group_rows, int64_t tokens, int64_t hidden, int64_t ffn,
                                 const at::TensorOptions& product) {
  const int64_t block_rows = thread_shares(tokens) * kLargestBlock;
  const auto make = [&](int64_t rows, int64_t width) { return at::empty({rows, width}, product); };
  return {make(group_rows, hidden),  make(group_rows, hidden), make(group_rows, ffn),
          make(group_rows, 2 * ffn), make(block_rows, hidden), make(block_rows, ffn)};
}

// Everything but the weight gradients of one block; row: where its rows begin in the buffers of the group.
template <typename Scalar, typename Product>
void backward_block(const BackwardInputs& in, const Assignment& pairs, const RowBlock& block, int64_t row,
                    const at::Tensor& gate_up_GD, const at::Tensor& down_DF, const BackwardBuffers& buffers,
                    const Gradients& grad) {
  using Real = Accumulator<Scalar>;
  const int64_t hidden = in.x_TD.size(1), experts = in.gates_TE.size(1), ffn = down_DF.size(1);
  const int64_t rows = block.rows, own = block.share * kLargestBlock;
  const int64_t* tokens = pairs.token_A.data() + block.pair;
  gather(in.grad_y_TD.const_data_ptr<Scalar>(), tokens, rows, hidden, row_start<Product>(buffers.dy_ND, row));
  at::Tensor da_NF = row_block(buffers.da_NF, own, rows);
  at::mm_out(da_NF, row_block(buffers.dy_ND, row, rows), down_DF);
  const Scalar* pre = row_start<Scalar>(in.pre_activations_AG, block.pair);
  const Product* da = da_NF.const_data_ptr<Product>();
  const Real* gates = in.gates_TE.const_data_ptr<Real>() + block.expert;
  Real* grad_gates =
      grad.gates_TE.defined() ? grad.gates_TE.mutable_data_ptr<Real>() + block.expert : nullptr;
  Product* d_pre = row_start<Product>(buffers.d_pre_NG, row);
  Product* scaled = row_start<Product>(buffers.scaled_NF, row);
  run_widest([&] {
    for (int64_t n = 0; n < rows; ++n) {
      const Real grad_gate = swiglu_backward(pre + n * 2 * ffn, da + n * ffn, gates[tokens[n] * experts], ffn,
                                             d_pre + n * 2 * ffn, scaled + n * ffn);
      if (grad_gates != nullptr) grad_gates[tokens[n] * experts] = grad_gate;
    }
  });
  if (grad.gate_up_proj.defined()) {
    gather(in.x_TD.const_data_ptr<Scalar>(), tokens, rows, hidden, row_start<Product>(buffers.x_ND, row));
  }
  if (!grad.x_TD.defined()) return;
  at::Tensor dx_ND = row_block(buffers.dx_ND, own, rows);
  at::mm_out(dx_ND, row_block(buffers.d_pre_NG, row, rows), gate_up_GD);
  scatter_add<Product, Real>(dx_ND.const_data_ptr<Product>(), tokens, rows, hidden, nullptr, 0,
                             grad.x_TD.mutable_data_ptr<Real>());
}

// Rows [begin, end) of out = left^T right.
template <typename Scalar, typename Product>
void weight_gradient(const at::Tensor& left_NM, const at::Tensor& right_NK, const at::Tensor& out_MK,
                     int64_t begin, int64_t end) {
  at::Tensor out = out_MK.narrow(0, begin, end - begin);
  if (left_NM.size(0) == 0) {
    out.zero_();
    return;
  }
  const at::Tensor left = left_NM.narrow(1, begin, end - begin).t();
  if constexpr (std::is_same_v<Scalar, Product>) {
    at::mm_out(out, left, right_NK);
  } else {
    const at::Tensor sum = at::mm(left, right_NK);
    convert(sum.const_data_ptr<Product>(), out.mutable_data_ptr<Scalar>(), sum.numel());
  }
}

// The gradient of one weight for the experts of a group; every thread forms its share of the rows of each.
template <typename Scalar, typename Product>
void weight_gradients(const Assignment& pairs, const ExpertGroup& group, const at::Tensor& left_NM,
                      const at::Tensor& right_NK, const at::Tensor& grad_EMK) {
  if (!grad_EMK.defined()) return;
  const int64_t rows = left_NM.size(1), shares = thread_shares(rows);
  at::parallel_for(0, shares, 1, [&](int64_t begin, int64_t end) {
    for (int64_t e = group.first; e < group.last; ++e) {
      const int64_t row = pairs.offset_E1[e] - group.pair, count = pairs.count(e);
      weight_gradient<Scalar, Product>(row_block(left_NM, row, count), row_block(right_NK, row, count),
                                       grad_EMK.select(0, e), rows * begin / shares, rows * end / shares);
    }
  });
}

template <typename Scalar, typename Product>
void backward(const BackwardInputs& in, const Assignment& pairs, const at::Tensor& gate_up_proj,
              const at::Tensor& down_proj, const Gradients& grad) {
  const int64_t tokens = in.x_TD.size(0), hidden = in.x_TD.size(1), ffn = down_proj.size(2);
  const auto product = in.x_TD.options().dtype(c10::CppTypeToScalarType<Product>::value);
  const auto groups = group_experts(pairs, in.gates_TE.size(1));
  const BackwardBuffers buffers = backward_buffers(most_rows(groups), tokens, hidden, ffn, product);
  const at::Tensor gate_up_buffer = weight_buffer<Scalar, Product>(gate_up_proj);
  const at::Tensor down_buffer = weight_buffer<Scalar, Product>(down_proj);
  for (const ExpertGroup& group : groups) {
    const at::Tensor gate_up = group_weight<Scalar, Product>(gate_up_proj, pairs, group, gate_up_buffer);
    const at::Tensor down = group_weight<Scalar, Product>(down_proj, pairs, group, down_buffer);
    for_row_blocks(pairs, group, tokens, [&](const RowBlock& block) {
      const int64_t e = block.expert - group.first;
      backward_block<Scalar, Product>(in, pairs, block, block.pair - group.pair, gate_up.select(0, e),
                                      down.select(0, e), buffers, grad);
    });
    weight_gradients<Scalar, Product>(pairs, group, buffers.d_pre_NG, buffers.x_ND, grad.gate_up_proj);
    weight_gradients<Scalar, Product>(pairs, group, buffers.dy_ND, buffers.scaled_NF, grad.down_proj);
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
