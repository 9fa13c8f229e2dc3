// Backward: for each group of experts, first blocks of rows as in the forward pass: dA = dy W_down, the
// activation's derivative on it while in cache, dx += d pre W_gate_up; d pre and r * A of the group are kept.
// Then the weight gradients d pre^T x and dy^T (r * A), whose rows the threads share out by their cost. The
// rows of x and dy are gathered where they are packed, never copied. Where threads share columns, each forms
// its columns of d pre and r * A first, then its columns of dx.
#include "dtopp/ops/moe_ffn_columns_cpu.h"

namespace dtopp {
namespace {

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

// Everything but the weight gradients of one block; row: where its rows begin in the buffers of the group.
template <typename Scalar, typename Tiles>
void backward_block(const BackwardInputs& in, const Assignment& pairs, const RowBlock& block, int64_t row,
                    const typename Tiles::Packed* gate_up, const typename Tiles::Packed* down,
                    const BackwardBuffers<Tiles>& buffers, const Gradients& grad) {
  using Real = typename Tiles::Real;
  const int64_t hidden = in.hidden, ffn = in.ffn, experts = in.gates_TE.size(1), rows = block.rows;
  const int64_t* tokens = pairs.token_A.data() + block.pair;
  typename Tiles::Packed* left = buffers.left.of(block.share);
  const Scalar* dy = in.grad_y_TD.const_data_ptr<Scalar>();
  pack_left_rows<Tiles>([&](int64_t n) { return dy + tokens[n] * hidden; }, rows, hidden, left);
  Real* da = buffers.da_NF.of(block.share);
  Tiles::template multiply<Order::kRows>(left, down, rows, ffn, hidden, da, ffn, false);
  const Scalar* pre = in.pre_activations_AG.const_data_ptr<Scalar>() + block.pair * 2 * ffn;
  const Real* gates = in.gates_TE.const_data_ptr<Real>() + block.expert;
  Real* grad_gates =
      grad.gates_TE.defined() ? grad.gates_TE.mutable_data_ptr<Real>() + block.expert : nullptr;
  Real* d_pre = buffers.d_pre_NG.template mutable_data_ptr<Real>() + row * 2 * ffn;
  Real* scaled = buffers.scaled_NF.template mutable_data_ptr<Real>() + row * ffn;
  run_widest([&] {
    for (int64_t n = 0; n < rows; ++n) {
      const Real grad_gate = swiglu_backward(pre + n * 2 * ffn, da + n * ffn, gates[tokens[n] * experts], ffn,
                                             ffn, d_pre + n * 2 * ffn, scaled + n * ffn);
      if (grad_gates != nullptr) grad_gates[tokens[n] * experts] = grad_gate;
      if (grad.x_TD.defined()) Tiles::pack_left_row(d_pre + n * 2 * ffn, n, rows, 2 * ffn, left);
    }
  });
  if (!grad.x_TD.defined()) return;
  Real* dx = buffers.dx_ND.of(block.share);
  Tiles::template multiply<Order::kRows>(left, gate_up, rows, hidden, 2 * ffn, dx, hidden, false);
  scatter_add(dx, tokens, rows, hidden, TokenSums<Real>{grad.x_TD.mutable_data_ptr<Real>(), hidden});
}

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

template <typename Scalar, typename Tiles>
void backward_rows(const BackwardInputs& in, const Assignment& pairs, const at::Tensor& gate_up_proj,
                   const at::Tensor& down_proj, const Gradients& grad) {
  const int64_t tokens = in.x_TD.size(0), hidden = in.hidden, ffn = in.ffn;
  const auto options = in.x_TD.options();
  const auto groups = group_experts(pairs, in.gates_TE.size(1), kGroupExperts);
  const int64_t threads = std::max(thread_shares(tokens), thread_shares(most_rows(groups)));
  const BackwardBuffers<Tiles> buffers(most_rows(groups), threads, hidden, ffn, options);
  using Weights = BufferParts<typename Tiles::Packed>;
  const Weights gate_up(kGroupExperts, Tiles::right_size(2 * ffn, hidden), options);
  const Weights down(kGroupExperts, Tiles::right_size(hidden, ffn), options);
  const auto pack = [&](const at::Tensor& weight, const ExpertGroup& group, const auto& out) {
    const int64_t K = weight.size(1), N = weight.size(2);
    pack_weights<Tiles>(pairs, group, N, out, [&](int64_t e, int64_t begin, int64_t end, auto* packed) {
      const Scalar* from = weight.const_data_ptr<Scalar>() + e * K * N;
      Tiles::pack_right_rows([&](int64_t k) { return from + k * N; }, K, N, begin, end, packed);
    });
  };
  for (const ExpertGroup& group : groups) {
    if (grad.x_TD.defined()) pack(gate_up_proj, group, gate_up);
    pack(down_proj, group, down);
    for_row_blocks<Tiles>(pairs, group, tokens, [&](const RowBlock& block) {
      const int64_t e = block.expert - group.first;
      backward_block<Scalar, Tiles>(in, pairs, block, block.pair - group.pair, gate_up.of(e), down.of(e),
                                    buffers, grad);
    });
    weight_gradients<Scalar, Tiles>(in, pairs, group, buffers, grad);
  }
}

// Expert e's [K, N] of a weight [E, K, N].
template <typename Scalar>
RightSide<Scalar> right_side(const at::Tensor& weight, int64_t e) {
  return {weight.const_data_ptr<Scalar>() + e * weight.size(1) * weight.size(2), weight.size(2), false};
}

// Where a group's rows are, and per share of the columns what they add to each row's gate gradient.
template <typename Real>
struct HiddenGradients {
  Real *d_pre_NG, *scaled_NF;
  Real* grad_gates_SN;
  int64_t first_pair, rows;
};

// Columns [begin, end) of d pre and r * A of a block.
template <typename Scalar, typename Tiles>
void backward_hidden(const BackwardInputs& in, const Assignment& pairs, const RowBlock& block,
                     const RightSide<Scalar>& down_DF, int64_t begin, int64_t end,
                     const ColumnBuffers<Tiles>& buffers, const HiddenGradients<typename Tiles::Real>& out) {
  using Real = typename Tiles::Real;
  const int64_t hidden = in.hidden, ffn = in.ffn, experts = in.gates_TE.size(1), rows = block.rows;
  const int64_t* tokens = pairs.token_A.data() + block.pair;
  const int64_t row = block.pair - out.first_pair;
  const Scalar* dy = in.grad_y_TD.const_data_ptr<Scalar>();
  const Scalar* pre = in.pre_activations_AG.const_data_ptr<Scalar>() + block.pair * 2 * ffn;
  const Real* gates = in.gates_TE.const_data_ptr<Real>() + block.expert;
  Real* grad_gates = out.grad_gates_SN + block.share * out.rows + row;
  buffers.pack_rows([&](int64_t n) { return dy + tokens[n] * hidden; }, rows, hidden, block.share);
  Real* da = buffers.product.of(block.share);
  for (int64_t f = begin; f < end; f += kColumnsAtOnce) {
    const int64_t columns = std::min(kColumnsAtOnce, end - f);
    buffers.multiply(rows, hidden, down_DF, f, columns, block.share, da, columns,
                     down_DF.rows(0, std::min(kTileDepth, hidden), f + columns, columns));
    run_widest([&] {
      for (int64_t n = 0; n < rows; ++n) {
        grad_gates[n] +=
            swiglu_backward(pre + n * 2 * ffn + f, da + n * columns, gates[tokens[n] * experts], ffn, columns,
                            out.d_pre_NG + (row + n) * 2 * ffn + f, out.scaled_NF + (row + n) * ffn + f);
      }
    });
  }
}

// Adds the shares' parts, in their order.
template <typename Real>
void add_gate_gradients(const Assignment& pairs, const std::vector<RowBlock>& blocks, int64_t shares,
                        const HiddenGradients<Real>& rows, const at::Tensor& grad_gates_TE) {
  const int64_t experts = grad_gates_TE.size(1);
  Real* grad = grad_gates_TE.mutable_data_ptr<Real>();
  for (const RowBlock& block : blocks) {
    for (int64_t pair = block.pair; pair < block.pair + block.rows; ++pair) {
      for (int64_t share = 0; share < shares; ++share) {
        grad[pairs.token_A[pair] * experts + block.expert] +=
            rows.grad_gates_SN[share * rows.rows + pair - rows.first_pair];
      }
    }
  }
}

template <typename Scalar, typename Tiles>
void backward_columns(const BackwardInputs& in, const Assignment& pairs, const at::Tensor& gate_up_proj,
                      const at::Tensor& down_proj, const Gradients& grad) {
  using Real = typename Tiles::Real;
  const int64_t hidden = in.hidden, ffn = in.ffn, experts = in.gates_TE.size(1);
  const auto groups = group_experts(pairs, experts, experts);
  const int64_t shares = at::get_num_threads();
  const BackwardBuffers<Tiles> sums(most_rows(groups), shares, hidden, ffn, in.x_TD.options());
  const ColumnBuffers<Tiles> buffers(std::max(hidden, 2 * ffn), in.x_TD.options());
  const BufferParts<Real> grad_gates(1, shares * most_rows(groups), in.x_TD.options());
  for (const ExpertGroup& group : groups) {
    const std::vector<RowBlock> blocks = row_blocks<Tiles>(pairs, group);
    const HiddenGradients<Real> rows{sums.d_pre_NG.template mutable_data_ptr<Real>(),
                                     sums.scaled_NF.template mutable_data_ptr<Real>(), grad_gates.of(0),
                                     group.pair, group.rows};
    std::fill_n(rows.grad_gates_SN, shares * group.rows, Real(0));
    for_hidden_columns<Tiles>(blocks, ffn, [&](const RowBlock& block, int64_t begin, int64_t end) {
      backward_hidden<Scalar, Tiles>(in, pairs, block, right_side<Scalar>(down_proj, block.expert), begin,
                                     end, buffers, rows);
    });
    if (grad.gates_TE.defined()) add_gate_gradients(pairs, blocks, shares, rows, grad.gates_TE);
    if (grad.x_TD.defined()) {
      add_results<Tiles>(
          blocks, pairs, 2 * ffn, hidden, buffers,
          [&](const RowBlock& block, int64_t n) {
            return rows.d_pre_NG + (block.pair - group.pair + n) * 2 * ffn;
          },
          [&](int64_t e) { return right_side<Scalar>(gate_up_proj, e); },
          [&](int64_t) {
            return TokenSums<Real>{grad.x_TD.mutable_data_ptr<Real>(), hidden};
          });
    }
    weight_gradients<Scalar, Tiles>(in, pairs, group, sums, grad);
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
  const BackwardInputs in{plain(grad_y_TD),          plain(x_TD),  plain(gates_TE),
                          plain(pre_activations_AG), x_TD.size(1), down_proj.size(2)};
  dispatch(x_TD, [&](auto scalar, auto tiles) {
    using Scalar = decltype(scalar);
    using Tiles = decltype(tiles);
    const bool few = mean_rows(pairs) <= kFewRowsBackward;
    const auto run = few ? backward_columns<Scalar, Tiles> : backward_rows<Scalar, Tiles>;
    run(in, pairs, plain(gate_up_proj), plain(down_proj), grad);
  });
  if (needed[0]) grad.x_TD = grad.x_TD.to(x_TD.scalar_type());
  return {grad.x_TD, grad.gates_TE, grad.gate_up_proj, grad.down_proj};
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CPU, m) { m.impl("moe_ffn_backward", moe_ffn_backward_cpu); }

}  // namespace dtopp
