// Forms the logits of a chunk of tokens, one block of the vocabulary at a time. Sums over a block while it is
// in cache. The CPU kernels of linear_cross_entropy and token_log_probs share it.
#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "dtopp/ops/cross_entropy/linear_cross_entropy.h"
#include "dtopp/ops/gemm/cpu_kernel.h"

namespace dtopp::ops {

// Columns of a block of logits. As an operand of a product, it is one block of K deep.
constexpr int64_t kBlockColumns = kTileDepth;

inline int64_t logit_blocks(int64_t vocabulary) {
  return round_up(vocabulary, kBlockColumns) / kBlockColumns;
}

// Returns the indices of the tokens whose target is not ignored. Throws c10::Error, beginning with `op`, if a
// target is out of range.
std::vector<int64_t> counted_tokens(const char* op, const at::Tensor& targets_T, int64_t vocabulary,
                                    std::optional<int64_t> ignore_index);

// One token's sums over the logits processed so far.
template <typename Real>
struct LogitSums {
  Real highest = -std::numeric_limits<Real>::infinity();
  double total = 0;       // sum of exp(logit - highest)
  Real target = 0;        // the target's logit; 0 until its block is processed
  int64_t likeliest = 0;  // first id with the logit `highest`

  double lse() const { return highest + std::log(total); }

  // Adds the sums of later logits. If all logits are -inf or NaN, a difference is NaN, and so is the sum.
  void add(const LogitSums& later) {
    target += later.target;
    if (later.highest > highest) {
      total = later.total + total * std::exp(static_cast<double>(highest) - later.highest);
      highest = later.highest;
      likeliest = later.likeliest;
    } else {
      total += later.total * std::exp(static_cast<double>(later.highest) - highest);
    }
  }
};

// Adds logits[0 .. columns), which belong to the vocabulary ids from `first` on. Replaces them by exp(logit -
// their highest) and returns that highest logit.
template <typename Real>
[[gnu::always_inline]] inline Real add_logits(Real* logits, int64_t first, int64_t columns, int64_t target,
                                              LogitSums<Real>& sums) {
  LogitSums<Real> block;
  Real highest = block.highest, total = 0;
#pragma omp simd reduction(max : highest)
  for (int64_t v = 0; v < columns; ++v) highest = logits[v] > highest ? logits[v] : highest;
  if (highest > sums.highest)
    block.likeliest = first + (std::find(logits, logits + columns, highest) - logits);
  if (target >= first && target < first + columns) block.target = logits[target - first];
#pragma omp simd reduction(+ : total)
  for (int64_t v = 0; v < columns; ++v) {
    logits[v] = fast_exp(logits[v] - highest);
    total += logits[v];
  }
  block.highest = highest;
  block.total = total;
  sums.add(block);
  return highest;
}

// Distributes the blocks of the vocabulary over threads: body(block, its first id, its columns, share).
template <typename Tiles, typename Body>
void for_vocabulary_blocks(int64_t vocabulary, int64_t shares, const Body& body) {
  const int64_t blocks = logit_blocks(vocabulary);
  at::parallel_for(0, shares, 1, [&](int64_t begin, int64_t end) {
    for (int64_t share = begin; share < end; ++share) {
      for (int64_t block = blocks * share / shares; block < blocks * (share + 1) / shares; ++block) {
        const int64_t first = block * kBlockColumns;
        body(block, first, std::min(kBlockColumns, vocabulary - first), share);
      }
    }
    Tiles::release();
  });
}

// A chunk of tokens whose logits are formed together.
struct TokenChunk {
  const int64_t* tokens;   // [rows]
  const int64_t* targets;  // targets of all tokens, not only of the chunk
  int64_t rows;
};

// Workspace for the logits of a chunk of up to `rows` tokens.
template <typename Tiles>
struct LogitBuffers {
  using Real = typename Tiles::Real;
  int64_t shares;
  BufferParts<typename Tiles::Packed> weight;  // per thread: a block of the weight, packed for either product
  BufferParts<typename Tiles::Packed>
      x_ND;                           // the chunk's rows, packed as the left operand; shared by all threads
  std::vector<LogitSums<Real>> sums;  // [shares, rows]
  std::vector<Real> highest;          // [blocks, rows]: the logit that was subtracted from the block's logits

  LogitBuffers(int64_t rows, int64_t hidden, int64_t vocabulary, const at::TensorOptions& options)
      : shares(std::min<int64_t>(at::get_num_threads(), std::max<int64_t>(logit_blocks(vocabulary), 1))),
        weight(shares,
               std::max(Tiles::right_size(hidden, kBlockColumns), Tiles::right_size(kBlockColumns, hidden)),
               options),
        x_ND(1, Tiles::template left_size<Order::kRows>(rows, hidden), options),
        sums(shares * rows),
        highest(logit_blocks(vocabulary) * rows) {}
};

struct KeepInPlace {
  template <typename Real>
  void operator()(int64_t /*block*/, int64_t /*columns*/, const Real* /*exponentials*/) const {}
};

// Forms the logits of a chunk and returns one LogitSums per row. A block's exponentials (add_logits) [rows,
// kBlockColumns] stay in place(block, share). keep(block, columns, exponentials) is called while they are in
// cache.
template <typename Scalar, typename Tiles, typename Place, typename Keep = KeepInPlace>
std::vector<LogitSums<typename Tiles::Real>> form_logits(const Scalar* x_TD, const Scalar* weight_VD,
                                                         int64_t hidden, int64_t vocabulary,
                                                         const TokenChunk& chunk,
                                                         LogitBuffers<Tiles>& buffers, const Place& place,
                                                         const Keep& keep = {}) {
  using Real = typename Tiles::Real;
  pack_left_rows<Tiles>([&](int64_t n) { return x_TD + chunk.tokens[n] * hidden; }, chunk.rows, hidden,
                        buffers.x_ND.of(0));
  std::fill(buffers.sums.begin(), buffers.sums.end(), LogitSums<Real>());
  for_vocabulary_blocks<Tiles>(
      vocabulary, buffers.shares, [&](int64_t block, int64_t first, int64_t columns, int64_t share) {
        Real* logits = place(block, share);
        Tiles::pack_right_transposed(weight_VD + first * hidden, hidden, hidden, columns, 0, columns,
                                     buffers.weight.of(share));
        Tiles::template multiply<Order::kRows>(buffers.x_ND.of(0), buffers.weight.of(share), chunk.rows,
                                               columns, hidden, logits, kBlockColumns, false);
        run_widest([&] {
          for (int64_t n = 0; n < chunk.rows; ++n) {
            buffers.highest[block * chunk.rows + n] =
                add_logits(logits + n * kBlockColumns, first, columns, chunk.targets[chunk.tokens[n]],
                           buffers.sums[share * chunk.rows + n]);
          }
        });
        keep(block, columns, logits);
      });
  std::vector<LogitSums<Real>> sums(buffers.sums.begin(), buffers.sums.begin() + chunk.rows);
  for (int64_t share = 1; share < buffers.shares; ++share) {
    for (int64_t n = 0; n < chunk.rows; ++n) sums[n].add(buffers.sums[share * chunk.rows + n]);
  }
  return sums;
}

}  // namespace dtopp::ops
