// Backward: processes groups of experts. For each block of rows it computes dA = dy W_down, the activation's
// derivative while dA is in cache, and dx += d_pre W_gate_up. It keeps d_pre and r A of the group.
//
// Then it computes the weights' gradients d_pre^T x and dy^T (r A). Threads share their rows in proportion to
// their cost. Rows of x and dy are gathered while they are packed and are never copied. If threads share
// columns, each computes its columns of d_pre and r A first, then its columns of dx.
#include "dtopp/ops/core/gradient_accumulation_hook.h"
#include "dtopp/ops/moe_ffn/moe_ffn_columns_cpu.h"
#include "dtopp/ops/moe_ffn/moe_ffn_cpu.h"

namespace dtopp::ops {

// Rows of the activation's backward pass, or some of their columns. The rows of `pre` and `d_pre` hold gate
// and up, which are `ffn` numbers apart.
template <typename Scalar, typename Real, typename Out>
struct SwigluRows {
  int64_t rows, columns, ffn;
  const Scalar* pre;  // its rows are 2 ffn numbers apart
  const Real* da;     // dy W_down
  int64_t da_stride;
  const Real* gates_TE;  // the expert's column
  int64_t num_experts;
  const int64_t* tokens;
  Out* d_pre;
  int64_t d_pre_stride;
  Out* scaled;       // r A, gate times activation, for the gradient of W_down; rows are ffn apart
  Real* gate_parts;  // <da, A> per kGateColumns columns: parts of the gate's gradient
  int64_t parts_stride;
};

// The columns of one partial sum of a gate's gradient. If a row is divided at multiples of this, the gradient
// always has the same bits.
constexpr int64_t kGateColumns = 64;
inline int64_t gate_parts(int64_t ffn) { return round_up(ffn, kGateColumns) / kGateColumns; }

// Computes d_pre, r A and the parts of the gates' gradients. All callers share one compiled version, because
// the compiler chooses the order in which a part is summed.
template <typename Scalar, typename Real, typename Out>
[[gnu::noinline]] void swiglu_backward(const SwigluRows<Scalar, Real, Out>& in) {
  run_widest([&] {
    for (int64_t n = 0; n < in.rows; ++n) {
      const Real r = in.gates_TE[in.tokens[n] * in.num_experts];
      for (int64_t first = 0; first < in.columns; first += kGateColumns) {
        const int64_t count = std::min(kGateColumns, in.columns - first);
        const Scalar* pre = in.pre + n * 2 * in.ffn + first;
        const Real* da_F = in.da + n * in.da_stride + first;
        Out *d_pre = in.d_pre + n * in.d_pre_stride + first, *scaled = in.scaled + n * in.ffn + first;
        Real part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t f = 0; f < count; ++f) {
          const Real gate = load(pre[f]), up = load(pre[in.ffn + f]), da = da_F[f];
          const Real sig = sigmoid(gate);
          const Real silu = gate * sig;
          part += da * silu * up;
          store(scaled + f, r * silu * up);
          store(d_pre + f, r * da * up * (sig + silu * (1 - sig)));
          store(d_pre + in.ffn + f, r * da * silu);
        }
        in.gate_parts[n * in.parts_stride + first / kGateColumns] = part;
      }
    }
  });
}

// Writes the gates' gradients: each is the sum of its parts.
template <typename Real>
void sum_gate_parts(const Real* parts, int64_t parts_each, const int64_t* tokens, int64_t rows,
                    Real* grad_gates_T, int64_t num_experts) {
  for (int64_t n = 0; n < rows; ++n) {
    Real sum = 0;
    for (int64_t part = 0; part < parts_each; ++part) sum += parts[n * parts_each + part];
    grad_gates_T[tokens[n] * num_experts] = sum;
  }
}

// The requested gradients, before rounding to the inputs' types; the others are undefined. Gradients of
// weights have the weights' type, or the gates' type if they are sums.
struct Gradients {
  Tensor x_TD, gates_TE;
  AccumulationTarget gate_up_proj, down_proj;
  Tensor slots_STD;  // of the sums in x_TD

  template <typename Real>
  TokenSums<Real> sums_of_x() const {
    return {x_TD.mutable_data_ptr<Real>(), slots_STD.mutable_data_ptr<Real>(), x_TD.size(0), x_TD.size(1)};
  }
};

struct BackwardInputs {
  Tensor grad_y_TD, x_TD, gates_TE, pre_activations_AG;
  int64_t hidden, ffn;
};

// Workspace of a pass over the groups of experts. The largest group has group_rows rows, and no expert has
// more than expert_rows.
template <typename Tiles>
struct BackwardBuffers {
  using Real = typename Tiles::Real;
  using Packed = typename Tiles::Packed;
  using Sums = OuterSumBuffers<Tiles>;
  int64_t d_pre_stride;
  BufferParts<Packed> d_pre_NG,
      scaled_NF;                    // the rows of a group; d_pre is a packed left operand if kFinishes
  BufferParts<Packed> left, right;  // packed operands
  BufferParts<Real> da_NF, dx_ND, sum;
  BufferParts<Real> gate_parts;  // for the rows of a block

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
            options),
        gate_parts(Tiles::kFinishes ? 0 : threads, Tiles::kLargestBlock * dtopp::ops::gate_parts(ffn),
                   options) {}

  static int64_t row_stride(int64_t K) {
    if constexpr (Tiles::kFinishes) return Tiles::left_stride(K);
    return K;
  }
};

// Computes the rows [begin, end) of one expert's weight gradient: the sum over its pairs n of left(n)[m]
// right(n)[k].
template <typename Scalar, typename Tiles, typename Left, typename Right>
void weight_gradient(const Left& left, const Right& right, int64_t pairs, int64_t begin, int64_t end,
                     int64_t width, int64_t share, const BackwardBuffers<Tiles>& buffers,
                     const AccumulationTarget& out_EMK, int64_t expert) {
  const OuterSumBuffers<Tiles> own{buffers.left.of(share), buffers.right.of(share), buffers.sum.of(share)};
  const auto sum_into = [&]<typename Out>(Out* out) {
    sum_outer_products(left, right, pairs, begin, end, width, own,
                       OuterSum<Out>{out + expert * out_EMK.sum.stride(0), out_EMK.add});
  };
  using Real = typename Tiles::Real;
  if (out_EMK.sum.scalar_type() == c10::CppTypeToScalarType<Real>::value)
    return sum_into(out_EMK.sum.mutable_data_ptr<Real>());
  sum_into(out_EMK.sum.mutable_data_ptr<Scalar>());
}

// Distributes the rows [0, M) of the gradients of the group's experts over threads; a row counts with its
// expert's pairs. Calls body(expert, first row, last row, share).
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
  if (grad.gate_up_proj.sum.defined()) {
    for_gradient_rows<Tiles>(
        pairs, group, 2 * ffn, [&](int64_t e, int64_t begin, int64_t end, int64_t share) {
          weight_gradient<Scalar, Tiles>(rows_of(buffers.d_pre_NG.of(0), buffers.d_pre_stride, e),
                                         gathered(x, e), pairs.count(e), begin, end, hidden, share, buffers,
                                         grad.gate_up_proj, e);
        });
  }
  if (!grad.down_proj.sum.defined()) return;
  for_gradient_rows<Tiles>(pairs, group, hidden, [&](int64_t e, int64_t begin, int64_t end, int64_t share) {
    weight_gradient<Scalar, Tiles>(gathered(dy, e), rows_of(buffers.scaled_NF.of(0), ffn, e), pairs.count(e),
                                   begin, end, ffn, share, buffers, grad.down_proj, e);
  });
}

// Returns expert e's matrix [K, N] of a weight [E, K, N].
template <typename Scalar>
RightSide<Scalar> right_side(const Tensor& weight, int64_t e) {
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
void backward_columns(const BackwardInputs& in, const Assignment& pairs, const Tensor& gate_up_proj,
                      const Tensor& down_proj, const Gradients& grad) {
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

namespace {

// Computes everything except the weights' gradients for one block. `row` is the block's first row in the
// buffers of the group.
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
  const int64_t parts = gate_parts(ffn);
  Real *d_pre = buffers.d_pre_NG.of(0) + row * 2 * ffn, *gate_sums = buffers.gate_parts.of(block.share);
  swiglu_backward(SwigluRows<Scalar, Real, Real>{
      rows, ffn, ffn, in.pre_activations_AG.const_data_ptr<Scalar>() + block.pair * 2 * ffn, da, ffn,
      in.gates_TE.const_data_ptr<Real>() + block.expert, experts, tokens, d_pre, 2 * ffn,
      buffers.scaled_NF.of(0) + row * ffn, gate_sums, parts});
  if (grad.gates_TE.defined())
    sum_gate_parts(gate_sums, parts, tokens, rows, grad.gates_TE.mutable_data_ptr<Real>() + block.expert,
                   experts);
  if (!grad.x_TD.defined()) return;
  pack_left_rows<Tiles>([&](int64_t n) { return d_pre + n * 2 * ffn; }, rows, 2 * ffn, left);
  Real* dx = buffers.dx_ND.of(block.share);
  Tiles::template multiply<Order::kRows>(left, gate_up, rows, hidden, 2 * ffn, dx, hidden, false);
  scatter_add(dx, pairs, block.pair, rows, hidden, grad.sums_of_x<Real>());
}

// The same for tiles that are finished one by one: d_pre is formed directly as the packed left operand of the
// next product.
void backward_block_in_tiles(const BackwardInputs& in, const Assignment& pairs, const RowBlock& block,
                             int64_t row, const c10::BFloat16* gate_up, const c10::BFloat16* down,
                             const BackwardBuffers<Bfloat16Tiles>& buffers, const Gradients& grad) {
  using Tiles = Bfloat16Tiles;
  const int64_t hidden = in.hidden, ffn = in.ffn, experts = in.gates_TE.size(1), rows = block.rows;
  const int64_t stride = buffers.d_pre_stride;
  const int64_t* tokens = pairs.token_A.data() + block.pair;
  c10::BFloat16* left = buffers.left.of(block.share);
  const auto* dy = in.grad_y_TD.const_data_ptr<c10::BFloat16>();
  const auto* pre = in.pre_activations_AG.const_data_ptr<c10::BFloat16>() + block.pair * 2 * ffn;
  const float* gates = in.gates_TE.const_data_ptr<float>() + block.expert;
  c10::BFloat16 *d_pre = buffers.d_pre_NG.of(0) + row * stride, *scaled = buffers.scaled_NF.of(0) + row * ffn;
  std::array<float, Tiles::kLargestBlock> grad_gates{};
  const Bfloat16Loops& loops = bfloat16_loops();
  pack_left_rows<Tiles>([&](int64_t n) { return dy + tokens[n] * hidden; }, rows, hidden, left);
  Tiles::multiply_finish(left, down, rows, ffn, hidden,
                         [&](const float* tile, int64_t m, int64_t count, int64_t f, int64_t columns) {
                           loops.swiglu_gradients(tile, count, columns,
                                                  {pre + m * 2 * ffn + f, 2 * ffn, ffn,
                                                   d_pre + m * stride + f, stride, scaled + m * ffn + f, ffn,
                                                   gates, experts, tokens + m, grad_gates.data() + m});
                         });
  if (grad.gates_TE.defined()) {
    float* out = grad.gates_TE.mutable_data_ptr<float>() + block.expert;
    for (int64_t n = 0; n < rows; ++n) out[tokens[n] * experts] = grad_gates[n];
  }
  if (!grad.x_TD.defined()) return;
  for (int64_t n = 0; n < rows; ++n) Tiles::fill_depth(d_pre + n * stride, 2 * ffn);
  float* dx = grad.x_TD.mutable_data_ptr<float>();
  Tiles::multiply_finish(
      d_pre, gate_up, rows, hidden, 2 * ffn,
      [&](const float* tile, int64_t m, int64_t count, int64_t d, int64_t columns) {
        loops.add_rows(tile, count, columns, {dx + d, hidden, tokens + m});
      },
      left);  // spare rows, because another thread writes the rows behind the block
}

template <typename Scalar, typename Tiles>
void backward_rows(const BackwardInputs& in, const Assignment& pairs, const Tensor& gate_up_proj,
                   const Tensor& down_proj, const Gradients& grad) {
  const int64_t tokens = in.x_TD.size(0), hidden = in.hidden, ffn = in.ffn;
  const auto options = in.x_TD.options();
  const auto groups = group_experts(pairs, in.gates_TE.size(1), kGroupExperts);
  const int64_t threads = std::max(thread_shares(tokens), thread_shares(most_rows(groups)));
  const BackwardBuffers<Tiles> buffers(most_rows(groups), most_pairs(pairs), threads, hidden, ffn, options);
  using Weights = BufferParts<typename Tiles::Packed>;
  const Weights gate_up(kGroupExperts, Tiles::right_size(2 * ffn, hidden), options);
  const Weights down(kGroupExperts, Tiles::right_size(hidden, ffn), options);
  const auto pack = [&](const Tensor& weight, const ExpertGroup& group, const auto& out) {
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
      const int64_t e = block.expert - group.first, row = block.pair - group.pair;
      if constexpr (Tiles::kFinishes) {
        backward_block_in_tiles(in, pairs, block, row, gate_up.of(e), down.of(e), buffers, grad);
      } else {
        backward_block<Scalar, Tiles>(in, pairs, block, row, gate_up.of(e), down.of(e), buffers, grad);
      }
    });
    weight_gradients<Scalar, Tiles>(in, pairs, group, buffers, grad);
  }
}

// Returns (grad_x_TD, grad_gates_TE). The weights' gradients go to the destinations in `grad`.
TensorPair run_backward(const char* op, const Tensor& grad_y_TD, const Tensor& x_TD, const Tensor& gates_TE,
                        const Tensor& gate_up_proj, const Tensor& down_proj, const Tensor& pre_activations_AG,
                        bool need_x, bool need_gates, Gradients grad) {
  if (need_x) grad.x_TD = at::zeros(x_TD.sizes(), gates_TE.options());
  if (need_gates) grad.gates_TE = at::zeros(gates_TE.sizes(), gates_TE.options());
  const Assignment pairs = assign(pairs_of(gates_TE), gates_TE.size(1));
  if (need_x) grad.slots_STD = slots_for(grad.x_TD, pairs);
  const int64_t rows = static_cast<int64_t>(pairs.token_A.size());
  TORCH_CHECK(pre_activations_AG.size(0) == rows, op, ": expected pre_activations of ", rows,
              " pairs, one per gate other than 0, got ", pre_activations_AG.size(0));
  const BackwardInputs in{plain(grad_y_TD),          plain(x_TD),  plain(gates_TE),
                          plain(pre_activations_AG), x_TD.size(1), down_proj.size(2)};
  dispatch(x_TD, [&](auto scalar, auto tiles) {
    using Scalar = decltype(scalar);
    using Tiles = decltype(tiles);
    const bool few = mean_rows(pairs) <= kFewRowsBackward;
    const auto run = few ? backward_columns<Scalar, Tiles> : backward_rows<Scalar, Tiles>;
    run(in, pairs, plain(gate_up_proj), plain(down_proj), grad);
  });
  if (need_x) grad.x_TD = grad.x_TD.to(x_TD.scalar_type());
  return {grad.x_TD, grad.gates_TE};
}

TensorQuadruple moe_ffn_backward_cpu(const Tensor& grad_y_TD, const Tensor& x_TD, const Tensor& gates_TE,
                                     const Tensor& gate_up_proj, const Tensor& down_proj,
                                     const Tensor& pre_activations_AG, std::array<bool, 4> needed) {
  check_moe_ffn_backward("moe_ffn_backward", grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj,
                         pre_activations_AG);
  Gradients grad;
  if (needed[2]) grad.gate_up_proj.sum = at::empty(gate_up_proj.sizes(), gate_up_proj.options());
  if (needed[3]) grad.down_proj.sum = at::empty(down_proj.sizes(), down_proj.options());
  auto [grad_x_TD, grad_gates_TE] = run_backward("moe_ffn_backward", grad_y_TD, x_TD, gates_TE, gate_up_proj,
                                                 down_proj, pre_activations_AG, needed[0], needed[1], grad);
  return {grad_x_TD, grad_gates_TE, grad.gate_up_proj.sum, grad.down_proj.sum};
}

TensorPair moe_ffn_backward_sums_cpu(const Tensor& grad_y_TD, const Tensor& x_TD, const Tensor& gates_TE,
                                     const Tensor& gate_up_proj, const Tensor& down_proj,
                                     const Tensor& pre_activations_AG, std::array<bool, 2> needed,
                                     const Tensor& gate_up_sum, const Tensor& down_sum,
                                     std::array<bool, 2> add) {
  check_moe_ffn_backward_sums(grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj, pre_activations_AG,
                              gate_up_sum, down_sum);
  Gradients grad;
  grad.gate_up_proj = {gate_up_sum, add[0]};
  grad.down_proj = {down_sum, add[1]};
  return run_backward("moe_ffn_backward_sums", grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj,
                      pre_activations_AG, needed[0], needed[1], grad);
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CPU, m) {
  m.impl("moe_ffn_backward", moe_ffn_backward_cpu);
  m.impl("moe_ffn_backward_sums", moe_ffn_backward_sums_cpu);
}

}  // namespace dtopp::ops
