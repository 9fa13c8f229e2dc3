// Shared by moe_ffn's CPU forward and backward passes: the pairs of each expert, the order in which a token's
// rows are added, and two ways to divide the work among threads.
//
// The work of one expert e is a matrix of its pairs (rows) times the columns of its weights. Threads share
// either the rows or the columns:
//
//                    many rows per expert                      few rows per expert
//
//                     columns of W_e                            columns of W_e
//                +----------------------+               +-------+-------+-------+
//                |       thread 0       |               |       |       |       |
//      pairs     +----------------------+     pairs     | thr 0 | thr 1 | thr 2 |
//      of e      |       thread 1       |     of e      |       |       |       |
//                +----------------------+               +-------+-------+-------+
//                |       thread 2       |
//                +----------------------+
//
// Sharing rows: all threads pack the weights of a group of experts once. Each thread then multiplies the
// pairs of its range of tokens. No two threads add to the same row of y or dx, so every sum has a fixed
// order. Threads synchronize once per group instead of once per expert.
//
// Sharing columns: each thread packs a few columns of the weights at a time into its own buffer, which stays
// in cache. Each weight is read once and its packed copy never leaves the cache.
#pragma once

#include "dtopp/ops/gemm/cpu_kernel.h"
#include "dtopp/ops/moe_ffn/moe_ffn.h"

namespace dtopp::ops {

// Limits of a group of experts when threads share rows.
constexpr int64_t kGroupRows = 8192;   // pairs; bounds the buffers of a group
constexpr int64_t kGroupExperts = 16;  // bounds the packed weights of a group

// Threads share columns if the experts that have pairs have at most this many on average.
constexpr int64_t kFewRowsForward = 384;
constexpr int64_t kFewRowsBackward = 192;
// The forward pass also shares columns if an expert has more weights than this: a group's packed weights
// would not stay in cache between blocks of rows.
constexpr int64_t kManyWeights = int64_t{1} << 22;
constexpr int64_t kPackingRows = 8;  // packing a weight costs as much as multiplying it with this many rows

// How a pair's row joins its token's partial sums, which lie in numbered slots. With merges = 0 the row is
// stored in `slot`. Otherwise it is added to slot - 1, that slot to the one below, and so on: `merges`
// additions in total.
//
// Example: a token selects the experts 0–3 of 4, with the rows a, b, c, d. The tree (expert_tree.h) gives (a
// + b) + (c + d):
//
//   row   slot   merges   effect
//   a      0       0      slot 0 = a
//   b      1       1      slot 0 += b                        slot 0 = a + b
//   c      1       0      slot 1 = c
//   d      2       2      slot 1 += d, slot 0 += slot 1      slot 0 = (a + b) + (c + d)
struct SumStep {
  uint8_t slot = 0, merges = 0;
};

// The token–expert pairs, ordered by expert, then token.
struct Assignment {
  std::vector<int64_t> offset_E1;  // expert e has the pairs [offset[e], offset[e + 1])
  std::vector<int64_t> token_A;
  std::vector<SumStep> step_A;  // empty if a token's rows are added in order
  int64_t slots = 1;            // largest number of slots that a token uses

  int64_t count(int64_t e) const { return offset_E1[e + 1] - offset_E1[e]; }
};

// Returns the gates other than 0, f32 or f64 [T, E], as pairs (expert, token), int64 [A, 2] in ascending
// order. nonzero() of the transposed gates gives the same, but jumps through their memory.
Tensor pairs_of(const Tensor& gates_TE);

// Builds the assignment from pairs_A2, (expert, token) in that order. Its steps add a token's rows along the
// tree of expert_tree.h.
Assignment assign(const Tensor& pairs_A2, int64_t experts);

// Builds the assignment of the gates other than 0, f32 [T, E], without steps.
Assignment assign_in_order(const Tensor& gates_TE);

// The experts [first, last) and their pairs [pair, pair + rows).
struct ExpertGroup {
  int64_t first, last, pair, rows;

  int64_t experts() const { return last - first; }
};

// Returns the mean number of pairs of the experts that have any.
double mean_rows(const Assignment& pairs);

// Returns the largest number of pairs of an expert.
int64_t most_pairs(const Assignment& pairs);

// Divides the experts into groups of up to kGroupRows pairs and `most` experts; each group has at least one
// expert. Experts without pairs belong to a group too.
std::vector<ExpertGroup> group_experts(const Assignment& pairs, int64_t experts, int64_t most);

int64_t most_rows(const std::vector<ExpertGroup>& groups);

// Returns the first token of each share, [shares + 1]. Shares have about equal numbers of the group's pairs
// and consist of whole tokens.
std::vector<int64_t> token_shares(const Assignment& pairs, const ExpertGroup& group, int64_t tokens);

// Rows of one expert, the pairs [pair, pair + rows), whose tokens belong to one thread.
struct RowBlock {
  int64_t expert, pair, rows;
  int64_t share;  // index of the thread's buffers
};

// Returns the first pair of expert e whose token is at least `token`.
inline int64_t find_pair(const Assignment& pairs, int64_t e, int64_t token) {
  const auto begin = pairs.token_A.begin();
  return std::lower_bound(begin + pairs.offset_E1[e], begin + pairs.offset_E1[e + 1], token) - begin;
}

// Calls body(block) for all pairs of the group. Each thread divides its rows of an expert into blocks of
// about equal size, in whole strips. A small block would read the weights for few rows.
template <typename Tiles, typename Body>
void for_row_blocks(const Assignment& pairs, const ExpertGroup& group, int64_t tokens, const Body& body) {
  const std::vector<int64_t> starts = token_shares(pairs, group, tokens);
  at::parallel_for(0, std::ssize(starts) - 1, 1, [&](int64_t begin, int64_t end) {
    for (int64_t share = begin; share < end; ++share) {
      for (int64_t e = group.first; e < group.last; ++e) {
        const int64_t first = find_pair(pairs, e, starts[share]);
        const int64_t last = find_pair(pairs, e, starts[share + 1]);
        const int64_t step = even_part(last - first, Tiles::kLargestBlock, Tiles::shape().rows);
        for (int64_t pair = first; pair < last; pair += step)
          body(RowBlock{e, pair, std::min(step, last - pair), share});
      }
    }
    Tiles::release();
  });
}

// Distributes the numbers [0, count) of each item in [first, last) over threads; a number counts with its
// item's cost. Calls body(item, begin, end, share); `begin` is a multiple of `step`.
template <typename Tiles, typename Cost, typename Body>
void for_even_shares(int64_t first, int64_t last, int64_t count, int64_t step, int64_t shares,
                     const Cost& cost, const Body& body) {
  int64_t total = 0;
  for (int64_t item = first; item < last; ++item) total += cost(item) * count;
  at::parallel_for(0, shares, 1, [&](int64_t from, int64_t to) {
    for (int64_t share = from; share < to; ++share) {
      int64_t before = 0;
      for (int64_t item = first; item < last; ++item) {
        const auto at = [&](int64_t position) {
          const int64_t number = std::max<int64_t>(position - before, 0) / cost(item);
          return std::clamp<int64_t>(round_up(number, step), 0, count);
        };
        const int64_t begin = at(total * share / shares);
        const int64_t end = share + 1 == shares ? count : at(total * (share + 1) / shares);
        if (begin < end) body(item, begin, end, share);
        before += cost(item) * count;
      }
    }
    Tiles::release();
  });
}

// Packs the weights of the group's experts that have pairs, each into its part of `out`. pack(expert, first
// column, last column, destination) packs some panels of one weight.
template <typename Tiles, typename Pack>
void pack_weights(const Assignment& pairs, const ExpertGroup& group, int64_t N,
                  const BufferParts<typename Tiles::Packed>& out, const Pack& pack) {
  const int64_t columns = Tiles::shape().columns, panels = round_up(N, columns) / columns;
  at::parallel_for(0, group.experts() * panels, 1, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t e = begin / panels, stop = std::min(end, (e + 1) * panels);
      if (pairs.count(group.first + e) > 0)
        pack(group.first + e, (begin - e * panels) * columns, std::min(N, (stop - e * panels) * columns),
             out.of(e));
      begin = stop;
    }
  });
}

// The token sums that rows are added to, or some columns of them. A row is multiplied with its gate first, or
// with 1 if gates_TE is null. Rows are `stride` numbers apart.
template <typename Real>
struct TokenSums {
  Real* y_TD;       // slot 0, finally the complete sum
  Real* slots_STD;  // slots 1, 2, …
  int64_t tokens, stride;
  const Real* gates_TE = nullptr;
  int64_t gate_stride = 0;

  Real* row(int64_t slot, int64_t token) const {
    return (slot == 0 ? y_TD : slots_STD + (slot - 1) * tokens * stride) + token * stride;
  }
  TokenSums columns_from(int64_t column) const {
    return {y_TD + column, slots_STD + column, tokens, stride, gates_TE, gate_stride};
  }
};

// Returns memory for the slots 1, 2, … of sums with the shape of y_TD.
inline Tensor slots_for(const Tensor& y_TD, const Assignment& pairs) {
  return at::empty({pairs.slots - 1, y_TD.size(0), y_TD.size(1)}, y_TD.options());
}

// Adds gate * row to the sum of each token, for consecutive pairs from first_pair on, one per row. Overwrites
// the rows.
template <typename Real>
void scatter_add(Real* rows_ND, const Assignment& pairs, int64_t first_pair, int64_t rows, int64_t width,
                 const TokenSums<Real>& out) {
  run_widest([&] {
    for (int64_t n = 0; n < rows; ++n) {
      const int64_t token = pairs.token_A[first_pair + n];
      const SumStep step = pairs.step_A[first_pair + n];
      const Real factor = out.gates_TE == nullptr ? Real(1) : out.gates_TE[token * out.gate_stride];
      // The product is rounded before it is added, because on another EP rank it may be the token's only row.
      Real* from = step.merges == 0 ? out.row(step.slot, token) : rows_ND + n * width;
      const Real* row = rows_ND + n * width;
#pragma omp simd
      for (int64_t d = 0; d < width; ++d) from[d] = factor * row[d];
      for (int64_t slot = step.slot - 1; slot >= step.slot - step.merges; --slot) {
        Real* to = out.row(slot, token);
#pragma omp simd
        for (int64_t d = 0; d < width; ++d) to[d] += from[d];
        from = to;
      }
    }
  });
}

template <typename Real>
[[gnu::always_inline]] inline Real sigmoid(Real x) {
  return 1 / (1 + fast_exp(-x));
}

}  // namespace dtopp::ops
