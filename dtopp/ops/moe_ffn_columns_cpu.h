// moe_ffn on the CPU where experts have few rows: what forward and backward share when threads share the
// columns of the weights (moe_ffn_cpu.h). First each thread has some columns of the expert's hidden layer,
// over the blocks of rows of a group; once all are there, some columns of the result, so that no two add to
// one number.
#pragma once

#include "dtopp/ops/moe_ffn_cpu.h"

namespace dtopp {

constexpr int64_t kColumnNumbers = int64_t{1} << 16;  // 256 KiB of floats: packed columns stay in cache
constexpr int64_t kMostColumns = 128;                 // of them: more would make the results' tiles large

// How many columns of K numbers a thread packs at once.
template <typename Tiles>
int64_t columns_at_once(int64_t K) {
  const int64_t unit = Tiles::shape().columns, most = kMostColumns / unit;
  return unit * std::clamp<int64_t>(kColumnNumbers / std::max<int64_t>(K, 1) / unit, 1, most);
}

// A group's rows, an expert's at most kLargestBlock at a time. No block belongs to a thread.
template <typename Tiles>
std::vector<RowBlock> row_blocks(const Assignment& pairs, const ExpertGroup& group) {
  std::vector<RowBlock> blocks;
  for (int64_t e = group.first; e < group.last; ++e) {
    for (int64_t pair = pairs.offset_E1[e]; pair < pairs.offset_E1[e + 1]; pair += Tiles::kLargestBlock) {
      blocks.push_back({e, pair, std::min(Tiles::kLargestBlock, pairs.offset_E1[e + 1] - pair), 0});
    }
  }
  return blocks;
}

// A thread's packed rows, packed columns, and their product for gate and up.
template <typename Tiles>
struct ColumnBuffers {
  BufferParts<typename Tiles::Packed> left, right;
  BufferParts<typename Tiles::Real> product;

  // widest: the longest row that is multiplied.
  ColumnBuffers(int64_t widest, const at::TensorOptions& options)
      : left(at::get_num_threads(), Tiles::template left_size<Order::kRows>(Tiles::kLargestBlock, widest),
             options),
        right(at::get_num_threads(),
              std::max(Tiles::right_size(widest, columns_at_once<Tiles>(widest)),
                       kColumnNumbers + kMostColumns),
              options),
        product(at::get_num_threads(), Tiles::kLargestBlock * 2 * kMostColumns, options) {}
};

// The expert's hidden layer: body(block, begin, end, share) for columns [begin, end) of each block's.
template <typename Tiles, typename Body>
void for_hidden_columns(const std::vector<RowBlock>& blocks, int64_t ffn, const Body& body) {
  const auto cost = [&](int64_t i) { return blocks[i].rows + kPackingRows; };
  for_even_shares<Tiles>(
      0, static_cast<int64_t>(blocks.size()), ffn, Tiles::shape().columns, at::get_num_threads(), cost,
      [&](int64_t i, int64_t begin, int64_t end, int64_t share) { body(blocks[i], begin, end, share); });
}

// The result: y[token] += gate * (row x matrix) for the rows of all blocks. row(block, n) points to K
// numbers, pack(expert, first, columns, packed) packs columns of the expert's K x width matrix, sums(expert)
// is y.
template <typename Tiles, typename Row, typename Pack, typename Sums>
void add_results(const std::vector<RowBlock>& blocks, const Assignment& pairs, int64_t K, int64_t width,
                 const ColumnBuffers<Tiles>& buffers, const Row& row, const Pack& pack, const Sums& sums) {
  const int64_t unit = Tiles::shape().columns, panels = round_up(width, unit) / unit;
  const int64_t most = columns_at_once<Tiles>(K), shares = std::min<int64_t>(panels, at::get_num_threads());
  at::parallel_for(0, shares, 1, [&](int64_t first, int64_t last) {
    for (int64_t share = first; share < last; ++share) {
      const int64_t begin = panels * share / shares * unit;
      const int64_t end = std::min(panels * (share + 1) / shares * unit, width);
      for (const RowBlock& block : blocks) {
        pack_left_rows<Tiles>([&](int64_t n) { return row(block, n); }, block.rows, K,
                              buffers.left.of(share));
        for (int64_t d = begin; d < end; d += most) {
          const int64_t columns = std::min(most, end - d);
          pack(block.expert, d, columns, buffers.right.of(share));
          Tiles::template multiply<Order::kRows>(buffers.left.of(share), buffers.right.of(share), block.rows,
                                                 columns, K, buffers.product.of(share), columns, false);
          auto out = sums(block.expert);
          out.y_TD += d;
          scatter_add(buffers.product.of(share), pairs.token_A.data() + block.pair, block.rows, columns, out);
        }
      }
    }
    Tiles::release();
  });
}

}  // namespace dtopp
