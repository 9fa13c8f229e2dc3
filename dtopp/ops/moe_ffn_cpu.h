// What moe_ffn's CPU forward and backward share: the pairs of each expert, row blocks over the threads,
// packed weights.
#pragma once

#include <algorithm>
#include <vector>

#include "dtopp/ops/cpu_kernel.h"
#include "dtopp/ops/moe_ffn_kernel.h"

namespace dtopp {

// A group of experts at a time, each thread takes a range of tokens through all of them, so that no two add
// to the same row of y or dx, the order of every sum is fixed, and threads meet once a group rather than once
// an expert.
constexpr int64_t kGroupRows = 4096;  // bounds the buffers of a group
constexpr int64_t kGroupExperts = 8;  // bounds its packed weights

// The token-expert pairs, ordered by expert, then token.
struct Assignment {
  std::vector<int64_t> offset_E1;  // expert e has the pairs [offset[e], offset[e + 1])
  std::vector<int64_t> token_A;

  int64_t count(int64_t e) const { return offset_E1[e + 1] - offset_E1[e]; }
};

// pairs_A2: (expert, token), in that order.
Assignment assign(const at::Tensor& pairs_A2, int64_t experts);

// Experts [first, last), which have the pairs [pair, pair + rows).
struct ExpertGroup {
  int64_t first, last, pair, rows;

  int64_t experts() const { return last - first; }
};

// As many experts as have kGroupRows pairs together, but at least one; experts without pairs are in a group
// too.
std::vector<ExpertGroup> group_experts(const Assignment& pairs, int64_t experts);

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

// y[token] += factor * row; factor 1 without gates.
template <typename Real>
void scatter_add(const Real* rows_ND, const int64_t* tokens, int64_t rows, int64_t width,
                 const Real* gates_TE, int64_t gate_stride, Real* y_TD) {
  run_widest([&] {
    for (int64_t n = 0; n < rows; ++n) {
      const Real factor = gates_TE == nullptr ? Real(1) : gates_TE[tokens[n] * gate_stride];
      const Real* from = rows_ND + n * width;
      Real* to = y_TD + tokens[n] * width;
#pragma omp simd
      for (int64_t d = 0; d < width; ++d) to[d] += factor * from[d];
    }
  });
}

template <typename Real>
[[gnu::always_inline]] inline Real sigmoid(Real x) {
  return 1 / (1 + fast_exp(-x));
}

}  // namespace dtopp
