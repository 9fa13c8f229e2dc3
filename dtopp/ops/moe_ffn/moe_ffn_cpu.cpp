// Forward: gathers a block of an expert's rows into packed strips and multiplies it with the packed gate and
// up weights. The activation runs while the result is in cache. The activations are multiplied with the
// packed down weight, and the rows times their gates are added to y.
//
// Only the pre-activations leave the block. If threads share columns, the activations of a group do as well.
// moe_ffn_pre_activations runs the same code without a y and ends after the first product.
#include "dtopp/ops/moe_ffn/moe_ffn_columns_cpu.h"

namespace dtopp::ops {
namespace {

// Computes the activations of a block as the left operand of the down product. Copies the pre-activations to
// saved_NG unless it is null.
template <typename Tiles, typename Scalar, typename Real>
void activate(const Real* pre_NG, int64_t rows, int64_t ffn, Real* row_F, typename Tiles::Packed* packed,
              Scalar* saved_NG) {
  run_widest([&] {
    for (int64_t n = 0; n < rows; ++n) {
      const Real* gate = pre_NG + n * 2 * ffn;
      const Real* up = gate + ffn;
      if (saved_NG != nullptr) copy_converted(gate, saved_NG + n * 2 * ffn, 2 * ffn);
#pragma omp simd
      for (int64_t f = 0; f < ffn; ++f) row_F[f] = gate[f] * sigmoid(gate[f]) * up[f];
      Tiles::pack_left_row(row_F, n, rows, ffn, packed);
    }
  });
}

template <typename Tiles>
struct ForwardBuffers {
  using Real = typename Tiles::Real;
  BufferParts<typename Tiles::Packed> x_ND, act_NF;  // packed
  BufferParts<Real> pre_NG, act_F, y_ND;             // unused if tiles are finished one by one

  ForwardBuffers(int64_t threads, int64_t hidden, int64_t ffn, const at::TensorOptions& options)
      : x_ND(threads, Tiles::template left_size<Order::kRows>(Tiles::kLargestBlock, hidden), options),
        act_NF(threads, Tiles::template left_size<Order::kRows>(Tiles::kLargestBlock, ffn), options),
        pre_NG(Tiles::kFinishes ? 0 : threads, Tiles::kLargestBlock * 2 * ffn, options),
        act_F(Tiles::kFinishes ? 0 : threads, ffn, options),
        y_ND(Tiles::kFinishes ? 0 : threads, Tiles::kLargestBlock * hidden, options) {}
};

struct ForwardTensors {
  Tensor x_TD, gates_TE, y_TD;  // y is undefined if only the pre-activations are wanted
  Tensor slots_STD;             // of the sums in y_TD
  Tensor pre_activations_AG;    // undefined if nothing is saved
};

template <typename Real>
TokenSums<Real> token_sums(const ForwardTensors& t, int64_t expert) {
  return {t.y_TD.mutable_data_ptr<Real>(),
          t.slots_STD.mutable_data_ptr<Real>(),
          t.y_TD.size(0),
          t.y_TD.size(1),
          t.gates_TE.const_data_ptr<Real>() + expert,
          t.gates_TE.size(1)};
}

template <typename Scalar, typename Tiles>
void forward_block(const ForwardTensors& t, const Assignment& pairs, const RowBlock& block,
                   const typename Tiles::Packed* gate_up, const typename Tiles::Packed* down, int64_t ffn,
                   const ForwardBuffers<Tiles>& buffers) {
  using Real = typename Tiles::Real;
  const int64_t hidden = t.x_TD.size(1), share = block.share;
  const int64_t* tokens = pairs.token_A.data() + block.pair;
  const Scalar* x = t.x_TD.const_data_ptr<Scalar>();
  pack_left_rows<Tiles>([&](int64_t n) { return x + tokens[n] * hidden; }, block.rows, hidden,
                        buffers.x_ND.of(share));
  Scalar* saved = nullptr;
  if (t.pre_activations_AG.defined())
    saved = t.pre_activations_AG.mutable_data_ptr<Scalar>() + block.pair * 2 * ffn;
  Real* pre = buffers.pre_NG.of(share);
  if constexpr (std::is_same_v<Scalar, Real>) {
    if (saved != nullptr) pre = std::exchange(saved, nullptr);  // compute directly in the saved tensor
  }
  Tiles::template multiply<Order::kRows>(buffers.x_ND.of(share), gate_up, block.rows, 2 * ffn, hidden, pre,
                                         2 * ffn, false);
  if (!t.y_TD.defined() && saved == nullptr) return;
  activate<Tiles>(pre, block.rows, ffn, buffers.act_F.of(share), buffers.act_NF.of(share), saved);
  if (!t.y_TD.defined()) return;
  Real* y = buffers.y_ND.of(share);
  Tiles::template multiply<Order::kRows>(buffers.act_NF.of(share), down, block.rows, hidden, ffn, y, hidden,
                                         false);
  scatter_add(y, pairs, block.pair, block.rows, hidden, token_sums<Real>(t, block.expert));
}

// The same for tiles that are finished one by one. A panel of gate_up has columns of both gate and up.
void forward_block_in_tiles(const ForwardTensors& t, const Assignment& pairs, const RowBlock& block,
                            const c10::BFloat16* gate_up, const c10::BFloat16* down, int64_t ffn,
                            const ForwardBuffers<Bfloat16Tiles>& buffers) {
  using Tiles = Bfloat16Tiles;
  const int64_t hidden = t.x_TD.size(1), stride = Tiles::left_stride(ffn), width = 2 * ffn;
  const int64_t* tokens = pairs.token_A.data() + block.pair;
  const auto* x = t.x_TD.const_data_ptr<c10::BFloat16>();
  c10::BFloat16 *rows_ND = buffers.x_ND.of(block.share), *act = buffers.act_NF.of(block.share);
  c10::BFloat16* saved = nullptr;
  if (t.pre_activations_AG.defined())
    saved = t.pre_activations_AG.mutable_data_ptr<c10::BFloat16>() + block.pair * width;
  const Bfloat16Loops& loops = bfloat16_loops();
  pack_left_rows<Tiles>([&](int64_t n) { return x + tokens[n] * hidden; }, block.rows, hidden, rows_ND);
  Tiles::multiply_finish(rows_ND, gate_up, block.rows, Tiles::paired_columns(ffn), hidden,
                         [&](const float* tile, int64_t m, int64_t rows, int64_t n, int64_t /*columns*/) {
                           const int64_t f = n / 2;
                           loops.swiglu(tile, rows, std::min(Tiles::kPanel / 2, ffn - f),
                                        act + m * stride + f, stride,
                                        saved == nullptr ? nullptr : saved + m * width + f, width, ffn);
                         });
  if (!t.y_TD.defined()) return;
  for (int64_t n = 0; n < block.rows; ++n) Tiles::fill_depth(act + n * stride, ffn);
  const TokenSums<float> y = token_sums<float>(t, block.expert);
  Tiles::multiply_finish(
      act, down, block.rows, hidden, ffn,
      [&](const float* tile, int64_t m, int64_t rows, int64_t n, int64_t columns) {
        loops.add_rows(tile, rows, columns, {y.y_TD + n, y.stride, tokens + m, y.gates_TE, y.gate_stride});
      });
}

template <typename Tiles>
int64_t gate_up_columns(int64_t ffn) {
  if constexpr (Tiles::kFinishes) return Tiles::paired_columns(ffn);
  return 2 * ffn;
}

template <typename Scalar, typename Tiles>
void forward_rows(const ForwardTensors& t, const Assignment& pairs, const Tensor& gate_up_proj,
                  const Tensor& down_proj) {
  const int64_t tokens = t.x_TD.size(0), hidden = t.x_TD.size(1), ffn = down_proj.size(2);
  const ForwardBuffers<Tiles> buffers(thread_shares(tokens), hidden, ffn, t.x_TD.options());
  using Weights = BufferParts<typename Tiles::Packed>;
  const int64_t columns = gate_up_columns<Tiles>(ffn);
  const Weights gate_up(kGroupExperts, Tiles::right_size(hidden, columns), t.x_TD.options());
  const Weights down(kGroupExperts, Tiles::right_size(ffn, hidden), t.x_TD.options());
  const Scalar* gate_up_EGD = gate_up_proj.const_data_ptr<Scalar>();
  const Scalar* down_EDF = down_proj.const_data_ptr<Scalar>();
  for (const ExpertGroup& group : group_experts(pairs, t.gates_TE.size(1), kGroupExperts)) {
    if (group.rows == 0) continue;
    pack_weights<Tiles>(
        pairs, group, columns, gate_up, [&](int64_t e, int64_t begin, int64_t end, auto* out) {
          const Scalar* gate = gate_up_EGD + e * 2 * ffn * hidden;
          if constexpr (Tiles::kFinishes) {
            Tiles::pack_right_paired(gate, gate + ffn * hidden, hidden, hidden, ffn, begin, end, out);
          } else {
            Tiles::pack_right_transposed(gate, hidden, hidden, 2 * ffn, begin, end, out);
          }
        });
    if (t.y_TD.defined()) {
      pack_weights<Tiles>(pairs, group, hidden, down, [&](int64_t e, int64_t begin, int64_t end, auto* out) {
        Tiles::pack_right_transposed(down_EDF + e * hidden * ffn, ffn, ffn, hidden, begin, end, out);
      });
    }
    for_row_blocks<Tiles>(pairs, group, tokens, [&](const RowBlock& block) {
      const int64_t e = block.expert - group.first;
      if constexpr (Tiles::kFinishes) {
        forward_block_in_tiles(t, pairs, block, gate_up.of(e), down.of(e), ffn, buffers);
      } else {
        forward_block<Scalar, Tiles>(t, pairs, block, gate_up.of(e), down.of(e), ffn, buffers);
      }
    });
  }
}

// Computes the columns [begin, begin + columns) of a block's activations from its packed rows. act_NF holds
// the activations of the block.
template <typename Scalar, typename Tiles>
void activate_columns(const ForwardTensors& t, const RowBlock& block, const Scalar* gate_up_GD, int64_t ffn,
                      int64_t begin, int64_t columns, const ColumnBuffers<Tiles>& buffers,
                      typename Tiles::Real* act_NF) {
  using Real = typename Tiles::Real;
  const int64_t hidden = t.x_TD.size(1), depth = std::min(kTileDepth, hidden);
  const RightSide<Scalar> gate_DF{gate_up_GD, hidden, true}, up_DF{gate_up_GD + ffn * hidden, hidden, true};
  Real* pre = buffers.product.of(block.share);  // [rows, gate and up, columns]
  buffers.multiply(block.rows, hidden, gate_DF, begin, columns, block.share, pre, 2 * columns,
                   up_DF.rows(0, depth, begin, columns));
  buffers.multiply(block.rows, hidden, up_DF, begin, columns, block.share, pre + columns, 2 * columns,
                   gate_DF.rows(0, depth, begin + columns, columns));
  Scalar* saved = nullptr;
  if (t.pre_activations_AG.defined())
    saved = t.pre_activations_AG.mutable_data_ptr<Scalar>() + block.pair * 2 * ffn + begin;
  run_widest([&] {
    for (int64_t n = 0; n < block.rows; ++n) {
      const Real *gate = pre + n * 2 * columns, *up = gate + columns;
      Real* act = act_NF + n * ffn + begin;
      if (saved != nullptr) {
        copy_converted(gate, saved + n * 2 * ffn, columns);
        copy_converted(up, saved + n * 2 * ffn + ffn, columns);
      }
#pragma omp simd
      for (int64_t f = 0; f < columns; ++f) act[f] = gate[f] * sigmoid(gate[f]) * up[f];
    }
  });
}

template <typename Scalar, typename Tiles>
void forward_columns(const ForwardTensors& t, const Assignment& pairs, const Tensor& gate_up_proj,
                     const Tensor& down_proj) {
  using Real = typename Tiles::Real;
  const int64_t hidden = t.x_TD.size(1), ffn = down_proj.size(2), experts = t.gates_TE.size(1);
  const auto groups = group_experts(pairs, experts, experts);
  const ColumnBuffers<Tiles> buffers(std::max(hidden, ffn), t.x_TD.options());
  const BufferParts<Real> act(1, most_rows(groups) * ffn, t.x_TD.options());
  const Scalar* x = t.x_TD.const_data_ptr<Scalar>();
  const Scalar* gate_up_EGD = gate_up_proj.const_data_ptr<Scalar>();
  const Scalar* down_EDF = down_proj.const_data_ptr<Scalar>();
  for (const ExpertGroup& group : groups) {
    const std::vector<RowBlock> blocks = row_blocks<Tiles>(pairs, group);
    const auto act_of = [&](const RowBlock& block) { return act.of(0) + (block.pair - group.pair) * ffn; };
    const int64_t shares = column_shares(blocks, hidden, ffn);
    for_hidden_columns<Tiles>(
        blocks, ffn, Tiles::shape().columns, shares, [&](const RowBlock& block, int64_t begin, int64_t end) {
          const int64_t* tokens = pairs.token_A.data() + block.pair;
          buffers.pack_rows([&](int64_t n) { return x + tokens[n] * hidden; }, block.rows, hidden,
                            block.share);
          for (int64_t f = begin; f < end; f += kColumnsAtOnce)
            activate_columns<Scalar, Tiles>(t, block, gate_up_EGD + block.expert * 2 * ffn * hidden, ffn, f,
                                            std::min(kColumnsAtOnce, end - f), buffers, act_of(block));
        });
    if (!t.y_TD.defined()) continue;
    add_results<Tiles>(
        blocks, pairs, ffn, hidden, shares, buffers,
        [&](const RowBlock& block, int64_t n) { return act_of(block) + n * ffn; },
        [&](int64_t e) {
          return RightSide<Scalar>{down_EDF + e * hidden * ffn, ffn, true};
        },
        [&](int64_t e) { return token_sums<Real>(t, e); });
  }
}

template <typename Scalar, typename Tiles>
void forward(const ForwardTensors& t, const Assignment& pairs, const Tensor& gate_up_proj,
             const Tensor& down_proj) {
  const int64_t weights = (gate_up_proj.size(1) + down_proj.size(2)) * t.x_TD.size(1);
  if (mean_rows(pairs) <= kFewRowsForward || weights > kManyWeights) {
    forward_columns<Scalar, Tiles>(t, pairs, gate_up_proj, down_proj);
  } else {
    forward_rows<Scalar, Tiles>(t, pairs, gate_up_proj, down_proj);
  }
}

// Adds to y_TD, which has the type of its sums, and fills pre_activations_AG. One of them may be undefined.
void run_forward(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& pairs_A2,
                 const Tensor& gate_up_proj, const Tensor& down_proj, const Tensor& y_TD,
                 const Tensor& pre_activations_AG) {
  const Assignment pairs = assign(pairs_A2, gates_TE.size(1));
  const ForwardTensors t{plain(x_TD), plain(gates_TE), y_TD,
                         y_TD.defined() ? slots_for(y_TD, pairs) : Tensor(), pre_activations_AG};
  dispatch(x_TD, [&](auto scalar, auto tiles) {
    forward<decltype(scalar), decltype(tiles)>(t, pairs, plain(gate_up_proj), plain(down_proj));
  });
}

TensorPair moe_ffn_forward_cpu(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& pairs_A2,
                               const Tensor& gate_up_proj, const Tensor& down_proj) {
  check_moe_ffn_forward("moe_ffn_forward", x_TD, gates_TE, pairs_A2, gate_up_proj, down_proj);
  check_pairs("moe_ffn_forward", pairs_A2, gates_TE.size(1), x_TD.size(0));
  const Tensor pre_AG = at::empty({pairs_A2.size(0), gate_up_proj.size(1)}, x_TD.options());
  const Tensor y_TD = at::zeros(x_TD.sizes(), gates_TE.options());
  run_forward(x_TD, gates_TE, pairs_A2, gate_up_proj, down_proj, y_TD, pre_AG);
  return {y_TD.to(x_TD.scalar_type()), pre_AG};
}

Tensor moe_ffn_pre_activations_cpu(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& pairs_A2,
                                   const Tensor& gate_up_proj, const Tensor& down_proj) {
  check_moe_ffn_forward("moe_ffn_pre_activations", x_TD, gates_TE, pairs_A2, gate_up_proj, down_proj);
  check_pairs("moe_ffn_pre_activations", pairs_A2, gates_TE.size(1), x_TD.size(0));
  Tensor pre_AG = at::empty({pairs_A2.size(0), gate_up_proj.size(1)}, x_TD.options());
  run_forward(x_TD, gates_TE, pairs_A2, gate_up_proj, down_proj, Tensor(), pre_AG);
  return pre_AG;
}

Tensor moe_ffn_cpu(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& gate_up_proj,
                   const Tensor& down_proj, int64_t capacity, bool /*recompute*/) {
  check_moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj, capacity);
  const Tensor y_TD = at::zeros(x_TD.sizes(), gates_TE.options());
  run_forward(x_TD, gates_TE, pairs_of(gates_TE), gate_up_proj, down_proj, y_TD, Tensor());
  return y_TD.to(x_TD.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CPU, m) {
  m.impl("moe_ffn", moe_ffn_cpu);
  m.impl("moe_ffn_forward", moe_ffn_forward_cpu);
  m.impl("moe_ffn_pre_activations", moe_ffn_pre_activations_cpu);
}

}  // namespace dtopp::ops
