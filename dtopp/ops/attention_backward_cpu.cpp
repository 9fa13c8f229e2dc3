// A head at a time. For a block of keys, all blocks of queries that see it: the probabilities again from the
// scores and the saved log-sum-exp, and from them the gradients of keys and values (sums over queries) and of
// queries (sums over keys). Neither scores nor probabilities leave the cache.
#include "dtopp/ops/attention_kernel_cpu.h"

namespace dtopp {
namespace {

using Tiles = AttentionTiles;

template <typename Scalar>
struct BackwardHead {
  HeadRows<const Scalar> q, k, v, y, grad_y;
  const float* lse_L;
  HeadRows<Scalar> grad_q, grad_k, grad_v;
};

// From scores and d y v^T of one query to the probabilities (in place of the scores) and scale * d scores (in
// place of the other); delta = <dy, y>.
[[gnu::always_inline]] inline void softmax_backward(float* scores, float* grad, int64_t seen, int64_t keys,
                                                    float scale, float lse, float delta) {
#pragma omp simd
  for (int64_t n = 0; n < seen; ++n) {
    const float p = fast_exp(scores[n] * scale - lse);
    scores[n] = p;
    grad[n] = p * (grad[n] - delta) * scale;
  }
  for (int64_t n = seen; n < keys; ++n) scores[n] = grad[n] = 0;
}

template <typename Scalar>
class BackwardHeads {
 public:
  BackwardHeads(int64_t length, int64_t width)
      : length_(length),
        width_(width),
        scale_(1 / std::sqrt(static_cast<float>(width))),
        keys_(length, width),
        values_(length, width),
        key_rows_(kKeys, length, width),
        query_rows_(kQueries, length, width),
        grad_rows_(kQueries, length, width),
        left_(left_rows_size(std::max(width, kKeys))),
        columns_(Tiles::left_size<Order::kColumns>(kKeys, kQueries)),
        scores_(kQueries * kKeys),
        grad_scores_(kQueries * kKeys),
        delta_(length),
        grad_q_(length * width),
        grad_k_(kKeys * width),
        grad_v_(kKeys * width) {}

  void run(const BackwardHead<Scalar>& head) {
    keys_.pack(head.k, length_);
    values_.pack(head.v, length_);
    key_rows_.pack(head.k, length_);
    query_rows_.pack(head.q, length_);
    grad_rows_.pack(head.grad_y, length_);
    find_delta(head);
    std::fill_n(grad_q_.data(), length_ * width_, 0.0F);
    for (int64_t block = 0; block * kKeys < length_; ++block) run_keys(head, block);
    write(grad_q_.data(), {0, length_}, head.grad_q);
  }

 private:
  void find_delta(const BackwardHead<Scalar>& head) {
    run_widest([&] {
      for (int64_t n = 0; n < length_; ++n) {
        const Scalar *y = head.y.row(n), *grad = head.grad_y.row(n);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t d = 0; d < width_; ++d) sum += load(y[d]) * load(grad[d]);
        delta_.data()[n] = sum;
      }
    });
  }

  void run_keys(const BackwardHead<Scalar>& head, int64_t block) {
    const Extent all{block * kKeys, std::min((block + 1) * kKeys, length_)};
    std::fill_n(grad_k_.data(), all.size() * width_, 0.0F);
    std::fill_n(grad_v_.data(), all.size() * width_, 0.0F);
    for (int64_t begin = all.begin / kQueries * kQueries; begin < length_; begin += kQueries) {
      const Extent queries{begin, std::min(begin + kQueries, length_)};
      const Extent keys = seen_keys(block, queries);
      if (keys.size() > 0) run_pair(head, block, queries, keys);
    }
    write(grad_k_.data(), all, head.grad_k);
    write(grad_v_.data(), all, head.grad_v);
  }

  void run_pair(const BackwardHead<Scalar>& head, int64_t block, const Extent& queries, const Extent& keys) {
    const int64_t rows = queries.size(), columns = keys.size();
    pack_queries(head.q, queries, width_, left_.data());
    Tiles::multiply<Order::kRows>(left_.data(), keys_.block(block), rows, columns, width_, scores_.data(),
                                  kKeys, false);
    pack_queries(head.grad_y, queries, width_, left_.data());
    Tiles::multiply<Order::kRows>(left_.data(), values_.block(block), rows, columns, width_,
                                  grad_scores_.data(), kKeys, false);
    run_widest([&] {
      for (int64_t n = 0; n < rows; ++n) {
        const int64_t seen = std::clamp<int64_t>(queries.begin + n + 1 - keys.begin, 0, columns);
        float* grad = grad_scores_.data() + n * kKeys;
        softmax_backward(scores_.data() + n * kKeys, grad, seen, columns, scale_,
                         head.lse_L[queries.begin + n], delta_.data()[queries.begin + n]);
        Tiles::pack_left_row(grad, n, rows, columns, left_.data());
      }
    });
    Tiles::multiply<Order::kRows>(left_.data(), key_rows_.get(keys), rows, width_, columns,
                                  grad_q_.data() + queries.begin * width_, width_, true);
    add_to_keys(scores_.data(), grad_rows_.get(queries), columns, rows, grad_v_.data());
    add_to_keys(grad_scores_.data(), query_rows_.get(queries), columns, rows, grad_k_.data());
  }

  // sum += weights^T right: what the queries give the keys.
  void add_to_keys(const float* weights, const float* right, int64_t keys, int64_t queries, float* sum) {
    Tiles::pack_left_columns([&](int64_t n) { return weights + n * kKeys; }, keys, queries, columns_.data());
    Tiles::multiply<Order::kColumns>(columns_.data(), right, keys, width_, queries, sum, width_, true);
  }

  void write(const float* from, const Extent& rows, const HeadRows<Scalar>& to) const {
    run_widest([&] {
      for (int64_t n = 0; n < rows.size(); ++n)
        copy_converted(from + n * width_, to.row(rows.begin + n), width_);
    });
  }

  int64_t length_, width_;
  float scale_;
  PackedColumns<Scalar> keys_, values_;
  PackedRows<Scalar> key_rows_, query_rows_, grad_rows_;
  Workspace left_, columns_, scores_, grad_scores_, delta_, grad_q_, grad_k_, grad_v_;
};

}  // namespace

AttentionGradients causal_attention_backward_cpu(const at::Tensor& grad_y_in, const at::Tensor& q_in,
                                                 const at::Tensor& k_in, const at::Tensor& v_in,
                                                 const AttentionOutput& output) {
  const at::Tensor grad_y = with_dense_rows(grad_y_in), q = with_dense_rows(q_in), k = with_dense_rows(k_in),
                   v = with_dense_rows(v_in), y = output.y_BHLK.detach();
  const int64_t length = q.size(2), width = q.size(3);
  const auto* lse = output.lse_BHL.const_data_ptr<float>();
  AttentionGradients grad{empty_heads(q), empty_heads(q), empty_heads(q)};
  dispatch_scalar(q, [&](auto scalar) {
    using Scalar = decltype(scalar);
    for_heads(q, [&](int64_t first, int64_t last) {
      BackwardHeads<Scalar> heads(length, width);
      for (int64_t i = first; i < last; ++i) {
        heads.run({head_of<Scalar>(q, i), head_of<Scalar>(k, i), head_of<Scalar>(v, i), head_of<Scalar>(y, i),
                   head_of<Scalar>(grad_y, i), lse + i * length, mutable_head_of<Scalar>(grad.q, i),
                   mutable_head_of<Scalar>(grad.k, i), mutable_head_of<Scalar>(grad.v, i)});
      }
    });
  });
  return grad;
}

}  // namespace dtopp
