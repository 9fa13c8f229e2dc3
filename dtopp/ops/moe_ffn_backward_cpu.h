// What both ways to share out moe_ffn's backward pass on the CPU have: the activation's derivative, the
// buffers of a group of experts, the weight gradients.
#pragma once

#include "dtopp/ops/moe_ffn_cpu.h"

namespace dtopp {

// One row of the backward pass through the activation, or `columns` of its columns: from da = dy W_down and
// the gate r to d pre, r * A (what the gradient of W_down needs) and the gate's gradient <da, A>, which is
// returned.
template <typename Scalar, typename Real, typename Out>
[[gnu::always_inline]] inline Real swiglu_backward(const Scalar* pre_G, const Real* da_F, Real r, int64_t ffn,
                                                   int64_t columns, Out* d_pre_G, Out* scaled_F) {
  Real grad_gate = 0;
#pragma omp simd reduction(+ : grad_gate)
  for (int64_t f = 0; f < columns; ++f) {
    const Real gate = load(pre_G[f]), up = load(pre_G[ffn + f]), da = da_F[f];
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
  int64_t hidden, ffn;
};

// What a pass over the groups of experts works in. The largest group has group_rows rows, no expert more than
// expert_rows.
template <typename Tiles>
struct BackwardBuffers {
  using Real = typename Tiles::Real;
  using Packed = typename Tiles::Packed;
  using Sums = OuterSumBuffers<Tiles>;
  int64_t d_pre_stride;
  BufferParts<Packed> d_pre_NG, scaled_NF;  // the rows of a group; d pre a packed left side if kFinishes
  BufferParts<Packed> left, right;          // packed
  BufferParts<Real> da_NF, dx_ND, sum;

  BackwardBuffers(int64_t group_rows, int64_t expert_rows, int64_t threads, int64_t hidden, int64_t ffn,
                  const at::TensorOptions& options)
      : d_pre_stride(row_stride(2 * ffn)),
        d_pre_NG(1, group_rows * d_pre_stride, options),
        scaled_NF(1, group_rows * ffn, options),
        left(
            threads,
            std::max(Tiles::template left_size<Order::kRows>(Tiles::kLargestBlock, std::max(hidden, 2 * ffn)),
                     Sums::left_size(expert_rows)),
            options),
        right(threads, Sums::right_size(expert_rows, std::max(hidden, ffn)), options),
        da_NF(Tiles::kFinishes ? 0 : threads, Tiles::kLargestBlock * ffn, options),
        dx_ND(Tiles::kFinishes ? 0 : threads, Tiles::kLargestBlock * hidden, options),
        sum(threads,
            std::max(Sums::sum_size(expert_rows, 2 * ffn, hidden), Sums::sum_size(expert_rows, hidden, ffn)),
            options) {}

  static int64_t row_stride(int64_t K) {
    if constexpr (Tiles::kFinishes) return Tiles::left_stride(K);
    return K;
  }
};

// Rows [begin, end) of a weight gradient of one expert: sum over its pairs n of left(n)[m] right(n)[k].
template <typename Scalar, typename Tiles, typename Left, typename Right>
void weight_gradient(const Left& left, const Right& right, int64_t pairs, int64_t begin, int64_t end,
                     int64_t width, int64_t share, const BackwardBuffers<Tiles>& buffers, Scalar* out_MK) {
  const OuterSumBuffers<Tiles> own{buffers.left.of(share), buffers.right.of(share), buffers.sum.of(share)};
  sum_outer_products(left, right, pairs, begin, end, width, own, out_MK);
}

// Shares the rows [0, M) of a gradient of every expert of the group out to the threads, each row counted with
// its expert's pairs: body(expert, first row, last row, share).
template <typename Tiles, typename Body>
void for_gradient_rows(const Assignment& pairs, const ExpertGroup& group, int64_t M, const Body& body) {
  const auto cost = [&](int64_t e) { return std::max<int64_t>(pairs.count(e), 1); };
  for_even_shares<Tiles>(group.first, group.last, M, Tiles::shape().rows, thread_shares(group.rows), cost,
                         body);
}

template <typename Scalar, typename Tiles>
void weight_gradients(const BackwardInputs& in, const Assignment& pairs, const ExpertGroup& group,
                      const BackwardBuffers<Tiles>& buffers, const Gradients& grad) {
  using Packed = typename Tiles::Packed;
  const int64_t hidden = in.hidden, ffn = in.ffn;
  const Scalar *x = in.x_TD.const_data_ptr<Scalar>(), *dy = in.grad_y_TD.const_data_ptr<Scalar>();
  const auto rows_of = [&](const Packed* rows, int64_t stride, int64_t e) {
    const Packed* start = rows + (pairs.offset_E1[e] - group.pair) * stride;
    return [start, stride](int64_t n) { return start + n * stride; };
  };
  const auto gathered = [&](const Scalar* from_TD, int64_t e) {
    const int64_t* tokens = pairs.token_A.data() + pairs.offset_E1[e];
    return [from_TD, tokens, hidden](int64_t n) { return from_TD + tokens[n] * hidden; };
  };
  if (grad.gate_up_proj.defined()) {
    for_gradient_rows<Tiles>(
        pairs, group, 2 * ffn, [&](int64_t e, int64_t begin, int64_t end, int64_t share) {
          weight_gradient<Scalar, Tiles>(rows_of(buffers.d_pre_NG.of(0), buffers.d_pre_stride, e),
                                         gathered(x, e), pairs.count(e), begin, end, hidden, share, buffers,
                                         grad.gate_up_proj.mutable_data_ptr<Scalar>() + e * 2 * ffn * hidden);
        });
  }
  if (!grad.down_proj.defined()) return;
  for_gradient_rows<Tiles>(pairs, group, hidden, [&](int64_t e, int64_t begin, int64_t end, int64_t share) {
    weight_gradient<Scalar, Tiles>(gathered(dy, e), rows_of(buffers.scaled_NF.of(0), ffn, e), pairs.count(e),
                                   begin, end, ffn, share, buffers,
                                   grad.down_proj.mutable_data_ptr<Scalar>() + e * hidden * ffn);
  });
}

}  // namespace dtopp
