// What both ways to share out moe_ffn's backward pass on the CPU have: the activation's derivative, the
// buffers of a group of experts, the weight gradients.
#pragma once

#include "dtopp/ops/moe_ffn_cpu.h"

namespace dtopp {

// One row of the backward pass through the activation, or `columns` of its columns: from da = dy W_down and
// the gate r to d pre, r * A (what the gradient of W_down needs) and the gate's gradient <da, A>, which is
// returned.
template <typename Scalar, typename Real>
[[gnu::always_inline]] inline Real swiglu_backward(const Scalar* pre_G, const Real* da_F, Real r, int64_t ffn,
                                                   int64_t columns, Real* d_pre_G, Real* scaled_F) {
  Real grad_gate = 0;
#pragma omp simd reduction(+ : grad_gate)
  for (int64_t f = 0; f < columns; ++f) {
    const Real gate = load(pre_G[f]), up = load(pre_G[ffn + f]), da = da_F[f];
    const Real sig = sigmoid(gate);
    const Real silu = gate * sig;
    grad_gate += da * silu * up;
    scaled_F[f] = r * silu * up;
    d_pre_G[f] = r * da * up * (sig + silu * (1 - sig));
    d_pre_G[ffn + f] = r * da * silu;
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

template <typename Tiles>
struct BackwardBuffers {
  using Real = typename Tiles::Real;
  at::Tensor d_pre_NG, scaled_NF;                   // the rows of a group
  BufferParts<typename Tiles::Packed> left, right;  // packed
  BufferParts<Real> da_NF, dx_ND, sum;

  BackwardBuffers(int64_t group_rows, int64_t threads, int64_t hidden, int64_t ffn,
                  const at::TensorOptions& options)
      : d_pre_NG(at::empty({group_rows, 2 * ffn}, real(options))),
        scaled_NF(at::empty({group_rows, ffn}, real(options))),
        left(threads, left_size(hidden, ffn), options),
        right(threads, OuterSumBuffers<Tiles>::right_size(std::max(hidden, ffn)), options),
        da_NF(threads, Tiles::kLargestBlock * ffn, options),
        dx_ND(threads, Tiles::kLargestBlock * hidden, options),
        sum(threads, Tiles::kLargestSum * std::max(hidden, ffn), options) {}

  static at::TensorOptions real(const at::TensorOptions& options) {
    return options.dtype(c10::CppTypeToScalarType<Real>::value);
  }
  static int64_t left_size(int64_t hidden, int64_t ffn) {
    return std::max(Tiles::template left_size<Order::kRows>(Tiles::kLargestBlock, std::max(hidden, 2 * ffn)),
                    OuterSumBuffers<Tiles>::left_size());
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
  using Real = typename Tiles::Real;
  const int64_t hidden = in.hidden, ffn = in.ffn;
  const Scalar *x = in.x_TD.const_data_ptr<Scalar>(), *dy = in.grad_y_TD.const_data_ptr<Scalar>();
  const auto rows_of = [&](const at::Tensor& buffer, int64_t e) {
    const int64_t width = buffer.size(1);
    const Real* start = buffer.const_data_ptr<Real>() + (pairs.offset_E1[e] - group.pair) * width;
    return [start, width](int64_t n) { return start + n * width; };
  };
  const auto gathered = [&](const Scalar* from_TD, int64_t e) {
    const int64_t* tokens = pairs.token_A.data() + pairs.offset_E1[e];
    return [from_TD, tokens, hidden](int64_t n) { return from_TD + tokens[n] * hidden; };
  };
  if (grad.gate_up_proj.defined()) {
    for_gradient_rows<Tiles>(
        pairs, group, 2 * ffn, [&](int64_t e, int64_t begin, int64_t end, int64_t share) {
          weight_gradient<Scalar, Tiles>(rows_of(buffers.d_pre_NG, e), gathered(x, e), pairs.count(e), begin,
                                         end, hidden, share, buffers,
                                         grad.gate_up_proj.mutable_data_ptr<Scalar>() + e * 2 * ffn * hidden);
        });
  }
  if (!grad.down_proj.defined()) return;
  for_gradient_rows<Tiles>(pairs, group, hidden, [&](int64_t e, int64_t begin, int64_t end, int64_t share) {
    weight_gradient<Scalar, Tiles>(gathered(dy, e), rows_of(buffers.scaled_NF, e), pairs.count(e), begin, end,
                                   ffn, share, buffers,
                                   grad.down_proj.mutable_data_ptr<Scalar>() + e * hidden * ffn);
  });
}

}  // namespace dtopp
