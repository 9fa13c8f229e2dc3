// Backward: processes groups of experts. For each block of rows it computes dA = dy W_down, the activation's
// derivative while dA is in cache, and dx += d_pre W_gate_up. It keeps d_pre and r A of the group.
//
// Then it computes the weights' gradients d_pre^T x and dy^T (r A). Threads share their rows in proportion to
// their cost. Rows of x and dy are gathered while they are packed and are never copied. If threads share
// columns, each computes its columns of d_pre and r A first, then its columns of dx.
#include "dtopp/ops/moe_ffn/moe_ffn_backward_cpu.h"

namespace dtopp::ops {
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
  const SwigluRows<Scalar, Real, Real> activation{
      rows,
      ffn,
      ffn,
      in.pre_activations_AG.const_data_ptr<Scalar>() + block.pair * 2 * ffn,
      da,
      ffn,
      in.gates_TE.const_data_ptr<Real>() + block.expert,
      experts,
      tokens,
      buffers.d_pre_NG.of(0) + row * 2 * ffn,
      2 * ffn,
      buffers.scaled_NF.of(0) + row * ffn,
      buffers.gate_parts.of(block.share),
      parts};
  swiglu_backward(activation);
  if (grad.gates_TE.defined())
    sum_gate_parts(activation.gate_parts, parts, tokens, rows,
                   grad.gates_TE.mutable_data_ptr<Real>() + block.expert, experts);
  if (!grad.x_TD.defined()) return;
  pack_left_rows<Tiles>([&](int64_t n) { return activation.d_pre + n * 2 * ffn; }, rows, 2 * ffn, left);
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
void backward_rows(const BackwardInputs& in, const Assignment& pairs, const at::Tensor& gate_up_proj,
                   const at::Tensor& down_proj, const Gradients& grad) {
  const int64_t tokens = in.x_TD.size(0), hidden = in.hidden, ffn = in.ffn;
  const auto options = in.x_TD.options();
  const auto groups = group_experts(pairs, in.gates_TE.size(1), kGroupExperts);
  const int64_t threads = std::max(thread_shares(tokens), thread_shares(most_rows(groups)));
  const BackwardBuffers<Tiles> buffers(most_rows(groups), most_pairs(pairs), threads, hidden, ffn, options);
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
std::tuple<at::Tensor, at::Tensor> run_backward(const char* op, const at::Tensor& grad_y_TD,
                                                const at::Tensor& x_TD, const at::Tensor& gates_TE,
                                                const at::Tensor& gate_up_proj, const at::Tensor& down_proj,
                                                const at::Tensor& pre_activations_AG, bool need_x,
                                                bool need_gates, Gradients grad) {
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

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> moe_ffn_backward_cpu(
    const at::Tensor& grad_y_TD, const at::Tensor& x_TD, const at::Tensor& gates_TE,
    const at::Tensor& gate_up_proj, const at::Tensor& down_proj, const at::Tensor& pre_activations_AG,
    std::array<bool, 4> needed) {
  check_moe_ffn_backward(grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj, pre_activations_AG);
  Gradients grad;
  if (needed[2]) grad.gate_up_proj.sum = at::empty(gate_up_proj.sizes(), gate_up_proj.options());
  if (needed[3]) grad.down_proj.sum = at::empty(down_proj.sizes(), down_proj.options());
  auto [grad_x_TD, grad_gates_TE] = run_backward("moe_ffn_backward", grad_y_TD, x_TD, gates_TE, gate_up_proj,
                                                 down_proj, pre_activations_AG, needed[0], needed[1], grad);
  return {grad_x_TD, grad_gates_TE, grad.gate_up_proj.sum, grad.down_proj.sum};
}

std::tuple<at::Tensor, at::Tensor> moe_ffn_backward_sums_cpu(
    const at::Tensor& grad_y_TD, const at::Tensor& x_TD, const at::Tensor& gates_TE,
    const at::Tensor& gate_up_proj, const at::Tensor& down_proj, const at::Tensor& pre_activations_AG,
    std::array<bool, 2> needed, const at::Tensor& gate_up_sum, const at::Tensor& down_sum,
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
