// moe_ffn's CUDA kernels, as plain functions of device pointers. moe_ffn.h has the equations.
//
// Pairs are (expert, token) with a gate other than 0, ordered by expert, then token. Buffers have `capacity`
// rows, and pairs beyond the capacity are dropped. Rows from the number of pairs to the capacity are neither
// read nor written.
#pragma once

#include "dtopp/ops/cuda/cuda_types.h"
#include "dtopp/ops/moe_ffn/expert_tree.h"

namespace dtopp::ops::cuda {

// Real: float or double.
template <typename Real>
struct GateTable {
  const Real* gates_TE;
  int64_t tokens, experts;
};

// Returns the number of blocks of tokens that count_pairs uses: the length of its rows.
int64_t pair_blocks(int64_t tokens);

// counts_EB[e][b]: pairs of expert e in the blocks of tokens before b. totals_E[e]: all pairs of expert e.
template <typename Real>
void count_pairs(const GateTable<Real>& gates, int32_t* counts_EB, int32_t* totals_E, Stream stream);

// offsets_E1[e]: the first pair of expert e, at most `capacity`. offsets_E1[E]: the number of pairs, at most
// `capacity`.
void offset_pairs(const int32_t* totals_E, int64_t experts, int64_t capacity, int32_t* offsets_E1,
                  Stream stream);

template <typename Real>
struct PairTable {
  const int32_t* offsets_E1;
  int64_t capacity;
  int32_t* token_A;
  Real* gate_A;
  int32_t* position_TE;  // index of the pair of a token and an expert, or -1
};

template <typename Real>
void fill_pairs(const GateTable<Real>& gates, const int32_t* counts_EB, const PairTable<Real>& pairs,
                Stream stream);

// The rows of the pairs. `pairs` points to their number.
struct PairRows {
  const int32_t* pairs;
  int64_t capacity;
};

// rows_AD[a] = x_TD[token_A[a]]
template <typename Scalar>
void gather_rows(const Scalar* x_TD, const int32_t* token_A, const PairRows& rows, int64_t hidden,
                 Scalar* rows_AD, Stream stream);

// act_AF = silu(gate) * up, for pre_AG = (gate, up)
template <typename Scalar>
void swiglu(const Scalar* pre_AG, const PairRows& rows, int64_t ffn, Scalar* act_AF, Stream stream);

// da_AF is the gradient of r A, for a pair's activation A and gate r. Results: d_pre_AG; scaled_AF = r A, for
// the gradient of down_proj; grad_gate_A = <da, A>.
template <typename Scalar>
struct SwigluBackward {
  using Real = Accumulator<Scalar>;
  const Scalar *pre_AG, *da_AF;
  const Real* gate_A;
  int64_t ffn;
  Scalar *d_pre_AG, *scaled_AF;
  Real* grad_gate_A;
};

template <typename Scalar>
void swiglu_backward(const SwigluBackward<Scalar>& in, const PairRows& rows, Stream stream);

// sums_TD[t] = the sum of gate * rows_AD[a] over the pairs a of t, or of rows_AD[a] if gates_TE is null.
//
// f32 and f64 add along the tree of expert_tree.h. Each product is rounded first, because on another EP rank
// it may be the token's only row. bf16 adds in the order of experts, because ranks exchange only rounded bf16
// sums.
template <typename Scalar>
struct RowSums {
  using Real = Accumulator<Scalar>;
  const Scalar* rows_AD;
  const int32_t* position_TE;
  const Real* gates_TE;
  int64_t tokens, experts, hidden;
  ExpertTree tree;
  Scalar* sums_TD;
};

template <typename Scalar>
void sum_rows(const RowSums<Scalar>& in, Stream stream);

// grad_gates_TE = the sum of the pair's parts in grad_gate_AP, or 0 without a pair. numbers = T E.
template <typename Real>
void spread_gate_gradients(const Real* grad_gate_AP, int64_t parts, const int32_t* position_TE,
                           int64_t numbers, Real* grad_gates_TE, Stream stream);

// Clears weight_EN[e] for the experts without pairs.
template <typename Scalar>
void clear_unused_experts(const int32_t* offsets_E1, int64_t experts, int64_t numbers, Scalar* weight_EN,
                          Stream stream);

}  // namespace dtopp::ops::cuda
