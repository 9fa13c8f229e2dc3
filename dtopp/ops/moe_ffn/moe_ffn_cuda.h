// moe_ffn's kernels for CUDA, as plain functions of device pointers (moe_ffn.h has the equations). Pairs are
// (expert, token) with a gate that is not 0, ordered by expert, then token. There is room for `capacity` of
// them: those beyond are left out. Rows from the number of pairs to the capacity are neither read nor
// written.
#pragma once

#include <cstdint>

#include "dtopp/ops/cuda/cuda_number.h"
#include "dtopp/ops/cuda/cuda_stream.h"
#include "dtopp/ops/moe_ffn/expert_tree.h"

namespace dtopp::cuda {

// Real: float, double.
template <typename Real>
struct GateTable {
  const Real* gates_TE;
  int64_t tokens, experts;
};

// How many blocks of tokens count_pairs forms: the length of its rows.
int64_t pair_blocks(int64_t tokens);

// counts_EB[e][b]: pairs of expert e in the blocks of tokens before b; totals_E[e]: in all.
template <typename Real>
void count_pairs(const GateTable<Real>& gates, int32_t* counts_EB, int32_t* totals_E, Stream stream);

// offsets_E1[e]: the first pair of expert e, at most `capacity`; offsets_E1[E]: the number of pairs.
void offset_pairs(const int32_t* totals_E, int64_t experts, int64_t capacity, int32_t* offsets_E1,
                  Stream stream);

template <typename Real>
struct PairTable {
  const int32_t* offsets_E1;
  int64_t capacity;
  int32_t* token_A;
  Real* gate_A;
  int32_t* position_TE;  // the pair of a token and an expert, -1 where there is none
};

template <typename Real>
void fill_pairs(const GateTable<Real>& gates, const int32_t* counts_EB, const PairTable<Real>& pairs,
                Stream stream);

// Rows that pairs have: `pairs` points to their number.
struct PairRows {
  const int32_t* pairs;
  int64_t capacity;
};

// rows_AD[a] = x_TD[token_A[a]]
template <typename Scalar>
void gather_rows(const Scalar* x_TD, const int32_t* token_A, const PairRows& rows, int64_t hidden,
                 Scalar* rows_AD, Stream stream);

// act_AF = silu(gate) * up, of pre_AG = (gate, up)
template <typename Scalar>
void swiglu(const Scalar* pre_AG, const PairRows& rows, int64_t ffn, Scalar* act_AF, Stream stream);

// da_AF: the gradient of a pair's activation A but for its gate r. d_pre_AG; scaled_AF = r A, which the
// gradient of down_proj needs; grad_gate_A = <da, A>.
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

// sums_TD[t] = sum over the pairs a of t of gate times rows_AD[a]; without gates_TE of rows_AD[a]. In f32 and
// f64 along the tree of expert_tree.h, each product rounded by itself: on another rank it might be alone. In
// bf16, where no rank sends a sum that is not rounded, in the order of experts.
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

// grad_gates_TE = the sum of the pair's parts of grad_gate_AP, 0 where there is no pair; numbers = T E.
template <typename Real>
void spread_gate_gradients(const Real* grad_gate_AP, int64_t parts, const int32_t* position_TE,
                           int64_t numbers, Real* grad_gates_TE, Stream stream);

// Zeros weight_EN[e] of experts without pairs.
template <typename Scalar>
void clear_unused_experts(const int32_t* offsets_E1, int64_t experts, int64_t numbers, Scalar* weight_EN,
                          Stream stream);

}  // namespace dtopp::cuda
