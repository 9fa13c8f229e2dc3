// Shared by moe_ffn's CPU forward and backward passes for experts with few rows, when threads share the
// columns of the weights (moe_ffn_cpu.h).
//
// Each thread first computes some columns of the expert's hidden layer, for all blocks of rows of a group.
// Once all columns exist, it computes some columns of the result, so no two threads add to the same number.
#pragma once

#include "dtopp/ops/gemm/right_side.h"
#include "dtopp/ops/moe_ffn/moe_ffn_cpu.h"

namespace dtopp::ops {

constexpr int64_t kColumnsAtOnce = 128;  // times kTileDepth of K: 128 KiB of packed floats stay in cache

// Rows of an expert that a thread multiplies together.
template <typename Tiles>
constexpr int64_t kMostRows = 2 * Tiles::kLargestBlock;

// Divides a group's rows into blocks of about equal size per expert. The blocks belong to no thread yet.
template <typename Tiles>
std::vector<RowBlock> row_blocks(const Assignment& pairs, const ExpertGroup& group) {
  std::vector<RowBlock> blocks;
  for (int64_t e = group.first; e < group.last; ++e) {
    const int64_t last = pairs.offset_E1[e + 1];
    const int64_t step = even_part(pairs.count(e), kMostRows<Tiles>, Tiles::shape().rows);
    for (int64_t pair = pairs.offset_E1[e]; pair < last; pair += step)
      blocks.push_back({e, pair, std::min(step, last - pair), 0});
  }
  return blocks;
}

// Each thread's packed rows, packed columns, and their product for gate and up.
template <typename Tiles>
struct ColumnBuffers {
  using Real = typename Tiles::Real;
  BufferParts<typename Tiles::Packed> left, right;
  BufferParts<Real> product;

  // widest: the longest row that is multiplied.
  ColumnBuffers(int64_t widest, const at::TensorOptions& options)
      : left(at::get_num_threads(), round_up(widest, kTileDepth) / kTileDepth * left_block(), options),
        right(at::get_num_threads(), Tiles::right_size(kTileDepth, kColumnsAtOnce), options),
        product(at::get_num_threads(), kMostRows<Tiles> * 2 * kColumnsAtOnce, options) {}

  static int64_t left_block() {
    return Tiles::template left_size<Order::kRows>(kMostRows<Tiles>, kTileDepth);
  }

  // Packs rows of K numbers. row(n) points to the n-th.
  template <typename Row>
  void pack_rows(const Row& row, int64_t rows, int64_t K, int64_t share) const {
    for (int64_t k = 0; k < K; k += kTileDepth)
      pack_left_rows<Tiles>([&](int64_t n) { return row(n) + k; }, rows, std::min(kTileDepth, K - k),
                            left.of(share) + k / kTileDepth * left_block());
  }

  // to = the packed rows times the columns [n, n + columns) of B. Its rows are `ldc` numbers apart.
  // Prefetches `after` at the end.
  template <typename Scalar>
  void multiply(int64_t rows, int64_t K, const RightSide<Scalar>& B, int64_t n, int64_t columns,
                int64_t share, Real* to, int64_t ldc, const NextRows& after) const {
    multiply_right_side<Tiles>({left.of(share), left_block(), rows, K}, B, n, columns, right.of(share), to,
                               ldc, after);
  }
};

// Weights that a thread processes in about the time that it takes to wake another thread.
constexpr int64_t kSmallestColumnShare = int64_t{1} << 18;

// Returns the number of threads that the blocks are worth.
inline int64_t column_shares(const std::vector<RowBlock>& blocks, int64_t hidden, int64_t ffn) {
  int64_t rows = 0;
  for (const RowBlock& block : blocks) rows += block.rows + kPackingRows;
  const int64_t weights = rows / kPackingRows * 3 * hidden * ffn;
  return std::clamp<int64_t>(weights / kSmallestColumnShare, 1, at::get_num_threads());
}

// Computes the experts' hidden layers: body(block, begin, end) for the columns [begin, end) of each block.
// `begin` is a multiple of `step`, and block.share is the index of the thread, out of `shares`.
template <typename Tiles, typename Body>
void for_hidden_columns(const std::vector<RowBlock>& blocks, int64_t ffn, int64_t step, int64_t shares,
                        const Body& body) {
  const auto cost = [&](int64_t i) { return blocks[i].rows + kPackingRows; };
  for_even_shares<Tiles>(0, std::ssize(blocks), ffn, step, shares, cost,
                         [&](int64_t i, int64_t begin, int64_t end, int64_t share) {
                           const RowBlock& block = blocks[i];
                           body(RowBlock{block.expert, block.pair, block.rows, share}, begin, end);
                         });
}

// Computes the result: y[token] += gate * (row x B) for the rows of all blocks. row(block, n) points to K
// numbers, B(expert) is [K, width], and sums(expert) is y.
template <typename Tiles, typename Row, typename Right, typename Sums>
void add_results(const std::vector<RowBlock>& blocks, const Assignment& pairs, int64_t K, int64_t width,
                 int64_t most_shares, const ColumnBuffers<Tiles>& buffers, const Row& row, const Right& right,
                 const Sums& sums) {
  const int64_t unit = Tiles::shape().columns, panels = round_up(width, unit) / unit;
  const int64_t shares = std::min(panels, most_shares);
  at::parallel_for(0, shares, 1, [&](int64_t first, int64_t last) {
    for (int64_t share = first; share < last; ++share) {
      const int64_t begin = panels * share / shares * unit;
      const int64_t end = std::min(panels * (share + 1) / shares * unit, width);
      for (const RowBlock& block : blocks) {
        buffers.pack_rows([&](int64_t n) { return row(block, n); }, block.rows, K, share);
        const auto B = right(block.expert);
        for (int64_t d = begin; d < end; d += kColumnsAtOnce) {
          const int64_t columns = std::min(kColumnsAtOnce, end - d);
          auto* product = buffers.product.of(share);
          buffers.multiply(block.rows, K, B, d, columns, share, product, columns,
                           B.rows(0, std::min(kTileDepth, K), d + columns, columns));
          scatter_add(product, pairs, block.pair, block.rows, columns, sums(block.expert).columns_from(d));
        }
      }
    }
    Tiles::release();
  });
}

}  // namespace dtopp::ops
