// moe_ffn's CPU backward pass for experts with few rows: each thread computes its columns of d_pre and of r A
// for a group, then its columns of dx. The weights' gradients are computed as for experts with many rows.
#pragma once

#include "dtopp/ops/moe_ffn/moe_ffn_backward_cpu.h"
#include "dtopp/ops/moe_ffn/moe_ffn_columns_cpu.h"

namespace dtopp::ops {

// Returns expert e's matrix [K, N] of a weight [E, K, N].
template <typename Scalar>
RightSide<Scalar> right_side(const at::Tensor& weight, int64_t e) {
  return {weight.const_data_ptr<Scalar>() + e * weight.size(1) * weight.size(2), weight.size(2), false};
}

// The rows of a group, and the partial sums of each row's gate gradient.
template <typename Tiles>
struct HiddenGradients {
  typename Tiles::Packed *d_pre_NG, *scaled_NF;
  int64_t d_pre_stride;
  typename Tiles::Real* gate_parts_NP;
  int64_t first_pair;
};

// Computes the columns [begin, end) of d_pre and r A for a block.
template <typename Scalar, typename Tiles>
void backward_hidden(const BackwardInputs& in, const Assignment& pairs, const RowBlock& block,
                     const RightSide<Scalar>& down_DF, int64_t begin, int64_t end,
                     const ColumnBuffers<Tiles>& buffers, const HiddenGradients<Tiles>& out) {
  using Real = typename Tiles::Real;
  const int64_t hidden = in.hidden, ffn = in.ffn, experts = in.gates_TE.size(1), rows = block.rows;
  const int64_t* tokens = pairs.token_A.data() + block.pair;
  const int64_t row = block.pair - out.first_pair, parts = gate_parts(ffn);
  const Scalar* dy = in.grad_y_TD.const_data_ptr<Scalar>();
  buffers.pack_rows([&](int64_t n) { return dy + tokens[n] * hidden; }, rows, hidden, block.share);
  Real* da = buffers.product.of(block.share);
  for (int64_t f = begin; f < end; f += kColumnsAtOnce) {
    const int64_t columns = std::min(kColumnsAtOnce, end - f);
    buffers.multiply(rows, hidden, down_DF, f, columns, block.share, da, columns,
                     down_DF.rows(0, std::min(kTileDepth, hidden), f + columns, columns));
    swiglu_backward(SwigluRows<Scalar, Real, typename Tiles::Packed>{
        rows, columns, ffn, in.pre_activations_AG.const_data_ptr<Scalar>() + block.pair * 2 * ffn + f, da,
        columns, in.gates_TE.const_data_ptr<Real>() + block.expert, experts, tokens,
        out.d_pre_NG + row * out.d_pre_stride + f, out.d_pre_stride, out.scaled_NF + row * ffn + f,
        out.gate_parts_NP + row * parts + f / kGateColumns, parts});
  }
}

template <typename Scalar, typename Tiles>
void backward_columns(const BackwardInputs& in, const Assignment& pairs, const at::Tensor& gate_up_proj,
                      const at::Tensor& down_proj, const Gradients& grad) {
  using Real = typename Tiles::Real;
  const int64_t hidden = in.hidden, ffn = in.ffn, experts = in.gates_TE.size(1);
  const auto groups = group_experts(pairs, experts, experts);
  const int64_t shares = at::get_num_threads();
  const BackwardBuffers<Tiles> sums(most_rows(groups), most_pairs(pairs), shares, hidden, ffn,
                                    in.x_TD.options());
  const ColumnBuffers<Tiles> buffers(std::max(hidden, 2 * ffn), in.x_TD.options());
  const BufferParts<Real> parts(1, most_rows(groups) * gate_parts(ffn), in.x_TD.options());
  for (const ExpertGroup& group : groups) {
    const std::vector<RowBlock> blocks = row_blocks<Tiles>(pairs, group);
    const HiddenGradients<Tiles> rows{sums.d_pre_NG.of(0), sums.scaled_NF.of(0), sums.d_pre_stride,
                                      parts.of(0), group.pair};
    for_hidden_columns<Tiles>(
        blocks, ffn, kGateColumns, shares, [&](const RowBlock& block, int64_t begin, int64_t end) {
          backward_hidden<Scalar, Tiles>(in, pairs, block, right_side<Scalar>(down_proj, block.expert), begin,
                                         end, buffers, rows);
        });
    if (grad.gates_TE.defined()) {
      for (const RowBlock& block : blocks)
        sum_gate_parts(rows.gate_parts_NP + (block.pair - group.pair) * gate_parts(ffn), gate_parts(ffn),
                       pairs.token_A.data() + block.pair, block.rows,
                       grad.gates_TE.mutable_data_ptr<Real>() + block.expert, experts);
    }
    if (grad.x_TD.defined()) {
      add_results<Tiles>(
          blocks, pairs, 2 * ffn, hidden, shares, buffers,
          [&](const RowBlock& block, int64_t n) {
            return rows.d_pre_NG + (block.pair - group.pair + n) * rows.d_pre_stride;
          },
          [&](int64_t e) { return right_side<Scalar>(gate_up_proj, e); },
          [&](int64_t) { return grad.sums_of_x<Real>(); });
    }
    weight_gradients<Scalar, Tiles>(in, pairs, group, sums, grad);
  }
}

}  // namespace dtopp::ops
