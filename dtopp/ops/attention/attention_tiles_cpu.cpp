// Each thread takes blocks of queries. It computes the scores of a strip of queries and a block of keys,
// replaces them by exponentials relative to the highest score so far, and adds their products with the
// values.
#include "dtopp/ops/attention/attention_tiles_cpu.h"

#include <limits>

#include <ATen/record_function.h>

namespace dtopp::ops {
namespace attention_tiles {
namespace {

struct Softmax {
  float highest = -std::numeric_limits<float>::infinity();  // score
  float total = 0;                                          // of the exponentials relative to it
};

// Queries and keys come in blocks of one size. Thus, if causal, each row of a block of queries attends to at
// least the first key of each block of keys.
template <typename Tiles>
struct ForwardBuffers {
  using Number = typename Tiles::Packed;
  static constexpr int64_t kBlock = Kind<Tiles>::kForwardBlock;
  static constexpr int64_t kScoreStride = kBlock + 16;  // rows a power of two apart share cache sets
  BufferParts<Number> queries, keys, values, weights;   // packed
  BufferParts<float> scores, sums;
  std::array<Softmax, kBlock> softmax;

  ForwardBuffers(const AttentionSizes& s, const at::TensorOptions& options)
      : queries(1, Tiles::template left_size<Order::kRows>(kBlock, s.K), options),
        keys(1, Tiles::right_size(s.K, kBlock), options),
        values(1, Tiles::right_size(kBlock, s.K), options),
        weights(1, kTile * Kind<Tiles>::row_stride(kBlock), options),
        scores(1, kTile * kScoreStride, options),
        sums(1, kBlock * s.width(), options) {}
};

template <typename Scalar>
struct ForwardHead {
  Rows<Scalar> q, k, v, y;
  float* logsumexp_L;
};

// Computes the rows of y from `begin` on, a block of them or fewer.
template <typename Scalar, typename Tiles>
void attend(const ForwardHead<Scalar>& head, const AttentionSizes& s, int64_t begin,
            ForwardBuffers<Tiles>& own) {
  using Kind = Kind<Tiles>;
  constexpr int64_t kBlock = ForwardBuffers<Tiles>::kBlock,
                    kScoreStride = ForwardBuffers<Tiles>::kScoreStride;
  const int64_t rows = std::min(kBlock, s.L - begin), end = s.causal ? begin + rows : s.L;
  const int64_t stride = Kind::row_stride(s.K), weight_stride = Kind::row_stride(kBlock), width = s.width();
  const int64_t panel = Kind::panel(), depth_of_head = Kind::depth(s.K);
  auto *keys = own.keys.of(0), *values = own.values.of(0), *weights = own.weights.of(0);
  float *scores = own.scores.of(0), *sums = own.sums.of(0);
  own.softmax.fill({});
  pack_left_rows<Tiles>([&](int64_t m) { return head.q(begin + m); }, rows, s.K, own.queries.of(0));
  for (int64_t n = 0; n < end; n += kBlock) {
    const int64_t count = std::min(kBlock, end - n);
    Tiles::pack_right_transposed(head.k(n), head.k.stride, s.K, count, 0, count, keys);
    Tiles::pack_right_rows([&](int64_t i) { return head.v(n + i); }, count, s.K, 0, s.K, values);
    for (int64_t m = 0; m < rows; m += kTile) {
      const int64_t strip = std::min(kTile, rows - m);
      const auto seen = [&](int64_t row) {  // keys of this block
        return s.causal ? std::min(count, begin + m + row + 1 - n) : count;
      };
      const int64_t depth = seen(strip - 1);
      for (int64_t i = 0; i < depth; i += kTile)
        Kind::template multiply<Order::kRows>(
            own.queries.of(0) + m * stride, stride, keys + i * depth_of_head, panel * depth_of_head, strip,
            std::min(kTile, depth - i), s.K, false, scores + i, kScoreStride);
      run_widest([&] {
        for (int64_t r = 0; r < strip; ++r) {
          Softmax& so_far = own.softmax[m + r];
          const float before = so_far.highest;
          const float total = Kind::softmax(scores + r * kScoreStride, seen(r), Kind::depth(depth), s.scale(),
                                            so_far.highest, weights + r * weight_stride);
          const float factor = fast_exp(s.scale() * (before - so_far.highest));
          so_far.total = factor * so_far.total + total;
          float* sum = sums + (m + r) * width;
#pragma omp simd
          for (int64_t i = 0; i < (n > 0 ? s.K : 0); ++i) sum[i] *= factor;
        }
      });
      Kind::template multiply<Order::kRows>(weights, weight_stride, values, panel * Kind::depth(count), strip,
                                            s.K, depth, n > 0, sums + m * width, width);
    }
  }
  run_widest([&] {
    for (int64_t m = 0; m < rows; ++m) {
      const Softmax& softmax = own.softmax[m];
      const float* sum = sums + m * width;
      Scalar* y = head.y(begin + m);
#pragma omp simd
      for (int64_t i = 0; i < s.K; ++i) store(y + i, sum[i] / softmax.total);
      head.logsumexp_L[begin + m] = s.scale() * softmax.highest + std::log(softmax.total);
    }
  });
}

template <typename Scalar, typename Tiles>
void attend_to_all(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionSizes& s,
                   const AttentionResult& out) {
  const Heads<Scalar> q_heads(q), k_heads(k), v_heads(v), y_heads(out.y_BHLK);
  auto* logsumexp = out.logsumexp_BHL.mutable_data_ptr<float>();
  constexpr int64_t kBlock = Kind<Tiles>::kForwardBlock;
  const int64_t blocks = round_up(s.L, kBlock) / kBlock;
  at::parallel_for(0, s.B * s.H * blocks, 1, [&](int64_t first, int64_t last) {
    ForwardBuffers<Tiles> own(s, q.options());
    for (int64_t i = first; i < last; ++i) {
      const int64_t h = i / blocks;
      attend<Scalar, Tiles>({q_heads.of(h), k_heads.of(h), v_heads.of(h), y_heads.of(h), logsumexp + h * s.L},
                            s, i % blocks * kBlock, own);
    }
    Tiles::release();
  });
}

}  // namespace
}  // namespace attention_tiles

AttentionResult attention_in_tiles(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   bool causal) {
  using namespace attention_tiles;
  RECORD_FUNCTION("dtopp::attention", (std::array<c10::IValue, 5>{q, k, v, 0.0, causal}));
  const AttentionSizes s(q, causal);
  AttentionResult out{s.empty(q.options()), at::empty({s.B, s.H, s.L}, q.options().dtype(at::kFloat))};
  dispatch_kind(
      q, [&](auto scalar, auto tiles) { attend_to_all<decltype(scalar), decltype(tiles)>(q, k, v, s, out); });
  RECORD_OUTPUTS(at::TensorList(out.y_BHLK));
  return out;
}

}  // namespace dtopp::ops
