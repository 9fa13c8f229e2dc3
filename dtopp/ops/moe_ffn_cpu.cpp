#include "dtopp/ops/moe_ffn_cpu.h"

namespace dtopp {
namespace {

template <typename Product>
void swiglu(const Product* pre_NG, int64_t rows, int64_t ffn, Product* out_NF) {
  run_widest([&] {
    for (int64_t n = 0; n < rows; ++n) {
      const Product* gate = pre_NG + n * 2 * ffn;
      const Product* up = gate + ffn;
      Product* out = out_NF + n * ffn;
#pragma omp simd
      for (int64_t f = 0; f < ffn; ++f) store(out + f, load(gate[f]) * sigmoid(load(gate[f])) * load(up[f]));
    }
  });
}

// What the forward pass of a block reads and writes. The buffers have kLargestBlock rows for each thread.
struct ForwardTensors {
  at::Tensor x_TD, gates_TE, y_TD;
  at::Tensor pre_activations_AG;  // undefined where nothing is saved
  at::Tensor x_ND, pre_NG, act_NF, y_ND;
};

template <typename Scalar, typename Product>
void forward_block(const ForwardTensors& t, const Assignment& pairs, const RowBlock& block,
                   const at::Tensor& gate_up_GD, const at::Tensor& down_DF) {
  using Real = Accumulator<Scalar>;
  const int64_t hidden = t.x_TD.size(1), experts = t.gates_TE.size(1), ffn = down_DF.size(1);
  const int64_t* tokens = pairs.token_A.data() + block.pair;
  const auto rows_of = [&](const at::Tensor& buffer) {
    return row_block(buffer, block.share * kLargestBlock, block.rows);
  };
  const at::Tensor x = rows_of(t.x_ND), act = rows_of(t.act_NF);
  gather(t.x_TD.const_data_ptr<Scalar>(), tokens, block.rows, hidden, x.mutable_data_ptr<Product>());
  // Saved where they are computed unless they are saved rounded.
  const bool save = t.pre_activations_AG.defined(), in_place = save && std::is_same_v<Scalar, Product>;
  at::Tensor pre = in_place ? row_block(t.pre_activations_AG, block.pair, block.rows) : rows_of(t.pre_NG);
  at::mm_out(pre, x, gate_up_GD.t());
  if (save && !in_place) {
    convert(pre.const_data_ptr<Product>(), row_start<Scalar>(t.pre_activations_AG, block.pair), pre.numel());
  }
  swiglu(pre.const_data_ptr<Product>(), block.rows, ffn, act.mutable_data_ptr<Product>());
  at::Tensor y = rows_of(t.y_ND);
  at::mm_out(y, act, down_DF.t());
  scatter_add(y.const_data_ptr<Product>(), tokens, block.rows, hidden,
              t.gates_TE.const_data_ptr<Real>() + block.expert, experts, t.y_TD.mutable_data_ptr<Real>());
}

// y as accumulated; pre_activations_AG is filled when defined.
template <typename Scalar, typename Product>
at::Tensor forward(const at::Tensor& x_TD, const at::Tensor& gates_TE, const Assignment& pairs,
                   const at::Tensor& gate_up_proj, const at::Tensor& down_proj,
                   const at::Tensor& pre_activations_AG) {
  const int64_t tokens = x_TD.size(0), hidden = x_TD.size(1), ffn = down_proj.size(2);
  const auto product = x_TD.options().dtype(c10::CppTypeToScalarType<Product>::value);
  const auto make = [&](int64_t width) {
    return at::empty({thread_shares(tokens) * kLargestBlock, width}, product);
  };
  const ForwardTensors t{x_TD,
                         gates_TE,
                         at::zeros(x_TD.sizes(), gates_TE.options()),
                         pre_activations_AG,
                         make(hidden),
                         make(2 * ffn),
                         make(ffn),
                         make(hidden)};
  const auto groups = group_experts(pairs, gates_TE.size(1));
  const at::Tensor gate_up_buffer = weight_buffer<Scalar, Product>(gate_up_proj);
  const at::Tensor down_buffer = weight_buffer<Scalar, Product>(down_proj);
  for (const ExpertGroup& group : groups) {
    if (group.rows == 0) continue;
    const at::Tensor gate_up = group_weight<Scalar, Product>(gate_up_proj, pairs, group, gate_up_buffer);
    const at::Tensor down = group_weight<Scalar, Product>(down_proj, pairs, group, down_buffer);
    for_row_blocks(pairs, group, tokens, [&](const RowBlock& block) {
      const int64_t e = block.expert - group.first;
      forward_block<Scalar, Product>(t, pairs, block, gate_up.select(0, e), down.select(0, e));
    });
  }
  return t.y_TD;
}

std::tuple<at::Tensor, at::Tensor> moe_ffn_forward_cpu(const at::Tensor& x_TD, const at::Tensor& gates_TE,
                                                       const at::Tensor& pairs_A2,
                                                       const at::Tensor& gate_up_proj,
                                                       const at::Tensor& down_proj) {
  check_moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj);
  const at::Tensor pre_AG = at::empty({pairs_A2.size(0), gate_up_proj.size(1)}, x_TD.options());
  const Assignment pairs = assign(pairs_A2, gates_TE.size(1));
  at::Tensor y_TD;
  dispatch(x_TD, [&](auto scalar, auto product) {
    y_TD = forward<decltype(scalar), decltype(product)>(plain(x_TD), plain(gates_TE), pairs,
                                                        plain(gate_up_proj), plain(down_proj), pre_AG);
  });
  return {y_TD.to(x_TD.scalar_type()), pre_AG};
}

at::Tensor moe_ffn_cpu(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                       const at::Tensor& down_proj) {
  check_moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj);
  const Assignment pairs = assign(at::nonzero(gates_TE.detach().t()), gates_TE.size(1));
  at::Tensor y_TD;
  dispatch(x_TD, [&](auto scalar, auto product) {
    y_TD = forward<decltype(scalar), decltype(product)>(plain(x_TD), plain(gates_TE), pairs,
                                                        plain(gate_up_proj), plain(down_proj), at::Tensor());
  });
  return y_TD.to(x_TD.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CPU, m) {
  m.impl("moe_ffn", moe_ffn_cpu);
  m.impl("moe_ffn_forward", moe_ffn_forward_cpu);
}

}  // namespace dtopp
