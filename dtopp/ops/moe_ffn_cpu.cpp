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

// y as accumulated; pre_activations_AG is filled when defined.
template <typename Scalar, typename Product>
at::Tensor forward(const at::Tensor& x_TD, const at::Tensor& gates_TE, const Assignment& pairs,
                   const at::Tensor& gate_up_proj, const at::Tensor& down_proj,
                   const at::Tensor& pre_activations_AG) {
  using Real = Accumulator<Scalar>;
  const int64_t hidden = x_TD.size(1), experts = gates_TE.size(1), ffn = down_proj.size(2);
  const auto product = x_TD.options().dtype(c10::CppTypeToScalarType<Product>::value);
  const at::Tensor y_TD =
      at::zeros(x_TD.sizes(), x_TD.options().dtype(c10::CppTypeToScalarType<Real>::value));
  const at::Tensor x_ND = at::empty({pairs.most, hidden}, product), y_ND = at::empty_like(x_ND);
  const at::Tensor pre_NG = at::empty({pairs.most, 2 * ffn}, product);
  const at::Tensor act_NF = at::empty({pairs.most, ffn}, product);
  const at::Tensor gate_up_buffer = at::empty({2 * ffn, hidden}, product);
  const at::Tensor down_buffer = at::empty({hidden, ffn}, product);
  for (int64_t e = 0; e < experts; ++e) {
    if (pairs.count(e) == 0) continue;
    const at::Tensor gate_up_GD = expert_weight<Scalar, Product>(gate_up_proj, e, gate_up_buffer);
    const at::Tensor down_DF = expert_weight<Scalar, Product>(down_proj, e, down_buffer);
    for_row_blocks(pairs.count(e), [&](int64_t begin, int64_t rows) {
      const int64_t first = pairs.offset_E1[e] + begin;
      const int64_t* tokens = pairs.token_A.data() + first;
      gather(x_TD.const_data_ptr<Scalar>(), tokens, rows, hidden, row_start<Product>(x_ND, begin));
      // Saved where they are computed unless they are saved rounded.
      const bool save = pre_activations_AG.defined(), in_place = save && std::is_same_v<Scalar, Product>;
      at::Tensor pre = in_place ? row_block(pre_activations_AG, first, rows) : row_block(pre_NG, begin, rows);
      at::Tensor y = row_block(y_ND, begin, rows);
      at::mm_out(pre, row_block(x_ND, begin, rows), gate_up_GD.t());
      if (save && !in_place) {
        convert(pre.const_data_ptr<Product>(), row_start<Scalar>(pre_activations_AG, first), rows * 2 * ffn);
      }
      swiglu(pre.const_data_ptr<Product>(), rows, ffn, row_start<Product>(act_NF, begin));
      at::mm_out(y, row_block(act_NF, begin, rows), down_DF.t());
      scatter_add(y.const_data_ptr<Product>(), tokens, rows, hidden, gates_TE.const_data_ptr<Real>() + e,
                  experts, y_TD.mutable_data_ptr<Real>());
    });
  }
  return y_TD;
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
