// A head at a time, its keys and values packed once. For a block of queries, block after block of keys up to
// the diagonal: scores, their exponentials against the highest score so far, and these times the values; what
// came before is scaled down where a higher score turns up. Scores never leave the cache.
#include <array>

#include "dtopp/ops/attention_kernel_cpu.h"

namespace dtopp {
namespace {

using Tiles = AttentionTiles;

// What the queries of a block have summed up so far.
struct SoftmaxRow {
  float highest, total;
};

// Turns the scores of one query against the keys it sees into exponentials, 0 for keys it does not see;
// scales y_K, what the keys before have given, down to the new highest score.
[[gnu::always_inline]] inline void add_scores(float* scores, int64_t seen, int64_t keys, float scale,
                                              SoftmaxRow& row, float* y_K, int64_t width) {
  float highest = row.highest;
#pragma omp simd reduction(max : highest)
  for (int64_t n = 0; n < seen; ++n) highest = scores[n] * scale > highest ? scores[n] * scale : highest;
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t n = 0; n < seen; ++n) {
    scores[n] = fast_exp(scores[n] * scale - highest);
    total += scores[n];
  }
  for (int64_t n = seen; n < keys; ++n) scores[n] = 0;
  const float shrink = row.total == 0 ? 0.0F : fast_exp(row.highest - highest);
  row = {highest, row.total * shrink + total};
#pragma omp simd
  for (int64_t d = 0; d < width; ++d) y_K[d] *= shrink;
}

template <typename Scalar>
class ForwardHeads {
 public:
  ForwardHeads(int64_t length, int64_t width)
      : length_(length),
        width_(width),
        scale_(1 / std::sqrt(static_cast<float>(width))),
        keys_(length, width),
        values_(kKeys, length, width),
        queries_(left_rows_size(width)),
        weights_(left_rows_size(kKeys)),
        scores_(kQueries * kKeys),
        y_(kQueries * width) {}

  void run(const HeadRows<const Scalar>& q, const HeadRows<const Scalar>& k, const HeadRows<const Scalar>& v,
           const HeadRows<Scalar>& y, float* lse_L) {
    keys_.pack(k, length_);
    values_.pack(v, length_);
    for (int64_t begin = 0; begin < length_; begin += kQueries)
      run_queries(q, {begin, std::min(begin + kQueries, length_)}, y, lse_L);
  }

 private:
  void run_queries(const HeadRows<const Scalar>& q, const Extent& queries, const HeadRows<Scalar>& y,
                   float* lse_L) {
    pack_queries(q, queries, width_, queries_.data());
    std::array<SoftmaxRow, kQueries> rows;
    rows.fill({-std::numeric_limits<float>::infinity(), 0});
    std::fill_n(y_.data(), queries.size() * width_, 0.0F);
    for (int64_t block = 0; block * kKeys < queries.end; ++block) {
      const Extent keys = seen_keys(block, queries);
      Tiles::multiply<Order::kRows>(queries_.data(), keys_.block(block), queries.size(), keys.size(), width_,
                                    scores_.data(), kKeys, false);
      run_widest([&] {
        for (int64_t n = 0; n < queries.size(); ++n) {
          float* scores = scores_.data() + n * kKeys;
          const int64_t seen = std::clamp<int64_t>(queries.begin + n + 1 - keys.begin, 0, keys.size());
          if (seen > 0) {
            add_scores(scores, seen, keys.size(), scale_, rows[n], y_.data() + n * width_, width_);
          } else {
            std::fill_n(scores, keys.size(), 0.0F);
          }
          Tiles::pack_left_row(scores, n, queries.size(), keys.size(), weights_.data());
        }
      });
      Tiles::multiply<Order::kRows>(weights_.data(), values_.get(keys), queries.size(), width_, keys.size(),
                                    y_.data(), width_, true);
    }
    run_widest([&] {
      for (int64_t n = 0; n < queries.size(); ++n) {
        float* from = y_.data() + n * width_;
        const float inverse = 1 / rows[n].total;
#pragma omp simd
        for (int64_t d = 0; d < width_; ++d) from[d] *= inverse;
        copy_converted(from, y.row(queries.begin + n), width_);
        lse_L[queries.begin + n] = rows[n].highest + std::log(rows[n].total);
      }
    });
  }

  int64_t length_, width_;
  float scale_;
  PackedColumns<Scalar> keys_;
  PackedRows<Scalar> values_;
  Workspace queries_, weights_, scores_, y_;
};

}  // namespace

AttentionOutput causal_attention_cpu(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in) {
  const at::Tensor q = with_dense_rows(q_in), k = with_dense_rows(k_in), v = with_dense_rows(v_in);
  const int64_t length = q.size(2), width = q.size(3);
  AttentionOutput out{empty_heads(q),
                      at::empty({q.size(0), q.size(1), length}, q.options().dtype(at::kFloat))};
  auto* lse = out.lse_BHL.mutable_data_ptr<float>();
  dispatch_scalar(q, [&](auto scalar) {
    using Scalar = decltype(scalar);
    for_heads(q, [&](int64_t first, int64_t last) {
      ForwardHeads<Scalar> heads(length, width);
      for (int64_t i = first; i < last; ++i) {
        heads.run(head_of<Scalar>(q, i), head_of<Scalar>(k, i), head_of<Scalar>(v, i),
                  mutable_head_of<Scalar>(out.y_BHLK, i), lse + i * length);
      }
    });
  });
  return out;
}

}  // namespace dtopp
