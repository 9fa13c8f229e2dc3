// What moe_ffn's CPU forward and backward share: the pairs of each expert, the two ways to share the work out
// to threads, packed weights.
//
// Many rows an expert: threads share the tokens, and every one multiplies with weights that all have packed
// together. Few rows an expert: threads share the columns of the weights, and each packs a few of them at a
// time into a buffer of its own that stays in cache, so that a weight is read once and goes nowhere.
#pragma once

#include <algorithm>
#include <vector>

#include "dtopp/ops/gemm/cpu_kernel.h"
#include "dtopp/ops/moe_ffn/moe_ffn_kernel.h"

namespace dtopp {

// A group of experts at a time, each thread takes a range of tokens through all of them, so that no two add
// to the same row of y or dx, the order of every sum is fixed, and threads meet once a group rather than once
// an expert.
constexpr int64_t kGroupRows = 4096;  // bounds the buffers of a group
constexpr int64_t kGroupExperts = 8;  // bounds its packed weights

// Threads share columns where the experts that have pairs have at most this many on average.
constexpr int64_t kFewRowsForward = 384;
constexpr int64_t kFewRowsBackward = 192;
// Forward they also do where an expert has more weights than this: a group's packed weights would not stay in
// cache from one block of rows to the next.
constexpr int64_t kManyWeights = int64_t{1} << 22;
constexpr int64_t kPackingRows = 8;  // packing a weight costs as much as multiplying it with this many rows

// How a pair's row joins what its token has: it is stored in `slot`, or, with merges, added to the slot
// below; of the slots then there the topmost is added to the one below it merges - 1 times.
struct SumStep {
  uint8_t slot = 0, merges = 0;
};

// The token-expert pairs, ordered by expert, then token.
struct Assignment {
  std::vector<int64_t> offset_E1;  // expert e has the pairs [offset[e], offset[e + 1])
  std::vector<int64_t> token_A;
  std::vector<SumStep> step_A;
  int64_t slots = 1;  // that a token uses, at most

  int64_t count(int64_t e) const { return offset_E1[e + 1] - offset_E1[e]; }
};

// pairs_A2: (expert, token), in that order. The steps add a token's rows along the tree of expert_tree.h.
Assignment assign(const at::Tensor& pairs_A2, int64_t experts);

// Experts [first, last), which have the pairs [pair, pair + rows).
struct ExpertGroup {
  int64_t first, last, pair, rows;

  int64_t experts() const { return last - first; }
};

// Pairs of an expert that has any, on average.
double mean_rows(const Assignment& pairs);

// Pairs of the expert that has most.
int64_t most_pairs(const Assignment& pairs);

// As many experts as have kGroupRows pairs together, but at least one and at most `most`; experts without
// pairs are in a group too.
std::vector<ExpertGroup> group_experts(const Assignment& pairs, int64_t experts, int64_t most);

int64_t most_rows(const std::vector<ExpertGroup>& groups);

// Where the tokens of each share begin: the pairs of a group in about equal parts, whole tokens. [shares + 1]
std::vector<int64_t> token_shares(const Assignment& pairs, const ExpertGroup& group, int64_t tokens);

// Rows of one expert whose tokens belong to one thread: pairs [pair, pair + rows).
struct RowBlock {
  int64_t expert, pair, rows;
  int64_t share;  // which thread's buffers
};

// The first pair of expert e whose token is not below `token`.
inline int64_t find_pair(const Assignment& pairs, int64_t e, int64_t token) {
  const auto begin = pairs.token_A.begin();
  return std::lower_bound(begin + pairs.offset_E1[e], begin + pairs.offset_E1[e + 1], token) - begin;
}

// Calls body(block) for all pairs of the group. A thread's rows of an expert are in blocks of about equal
// size, whole strips: a small one would read the weights for little.
template <typename Tiles, typename Body>
void for_row_blocks(const Assignment& pairs, const ExpertGroup& group, int64_t tokens, const Body& body) {
  const std::vector<int64_t> starts = token_shares(pairs, group, tokens);
  at::parallel_for(0, static_cast<int64_t>(starts.size()) - 1, 1, [&](int64_t begin, int64_t end) {
    for (int64_t share = begin; share < end; ++share) {
      for (int64_t e = group.first; e < group.last; ++e) {
        const int64_t first = find_pair(pairs, e, starts[share]);
        const int64_t last = find_pair(pairs, e, starts[share + 1]);
        const int64_t step = even_part(last - first, Tiles::kLargestBlock, Tiles::shape().rows);
        for (int64_t pair = first; pair < last; pair += step) {
          body(RowBlock{e, pair, std::min(step, last - pair), share});
        }
      }
    }
    Tiles::release();
  });
}

// Shares [0, count) of each of the items [first, last) out to threads, a number counted with its item's cost:
// body(item, begin, end, share), begin a multiple of step.
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

// Packs the weights of those experts of the group that have pairs, each into its part; pack(expert, first
// column, last column, destination) does so for some panels of one.
template <typename Tiles, typename Pack>
void pack_weights(const Assignment& pairs, const ExpertGroup& group, int64_t N,
                  const BufferParts<typename Tiles::Packed>& out, const Pack& pack) {
  const int64_t columns = Tiles::shape().columns, panels = round_up(N, columns) / columns;
  at::parallel_for(0, group.experts() * panels, 1, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t e = begin / panels, stop = std::min(end, (e + 1) * panels);
      if (pairs.count(group.first + e) > 0) {
        pack(group.first + e, (begin - e * panels) * columns, std::min(N, (stop - e * panels) * columns),
             out.of(e));
      }
      begin = stop;
    }
  });
}

// Columns of the sums of all tokens, rows `stride` numbers apart, and what a row is multiplied with before it
// is added: 1 without gates.
template <typename Real>
struct TokenSums {
  Real* y_TD;       // slot 0, in the end the sum
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

// Memory for the slots 1, 2, … of sums like y_TD.
inline at::Tensor slots_for(const at::Tensor& y_TD, const Assignment& pairs) {
  return at::empty({pairs.slots - 1, y_TD.size(0), y_TD.size(1)}, y_TD.options());
}

// Adds gate * row to the sum of each token, for the pairs from first_pair on, one a row. The rows are
// overwritten.
template <typename Real>
void scatter_add(Real* rows_ND, const Assignment& pairs, int64_t first_pair, int64_t rows, int64_t width,
                 const TokenSums<Real>& out) {
  run_widest([&] {
    for (int64_t n = 0; n < rows; ++n) {
      const int64_t token = pairs.token_A[first_pair + n];
      const SumStep step = pairs.step_A[first_pair + n];
      const Real factor = out.gates_TE == nullptr ? Real(1) : out.gates_TE[token * out.gate_stride];
      // Rounded by itself, whether it is added at once or later: on another rank it might be alone.
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

}  // namespace dtopp
