// Each thread takes heads. It forms scores and their gradients transposed, with a row per key, in tiles that
// stay in the first-level cache. Thus both are left operands of the gradients of v and k. One transposition
// per block makes the gradients of the scores the left operand of the gradient of q.
#include <ATen/record_function.h>

#include "dtopp/ops/attention/attention_tiles_cpu.h"

namespace dtopp::ops {
namespace attention_tiles {
namespace {

constexpr int64_t kBlock = 256;  // keys, and queries, that are multiplied at once
constexpr int64_t kAhead = 16;   // rows; those of a head lie apart, so the processor does not prefetch them

struct BackwardBuffers {
  BufferParts<Number> key_rows, value_rows, right_keys;  // of a block of keys
  BufferParts<Number> queries, grads;                    // of a head
  BufferParts<Number> right_queries, right_grads;        // of a head, a part per block of queries
  BufferParts<Number> weights, d_scores, d_scores_left;  // transposed, transposed, not
  BufferParts<float> tile, d_tile, d_keys, d_values, d_queries, logsumexp, means;  // sums, and two per query

  BackwardBuffers(const AttentionSizes& s, const at::TensorOptions& options)
      : key_rows(1, Tiles::left_size<Order::kRows>(kBlock, s.K), options),
        value_rows(1, Tiles::left_size<Order::kRows>(kBlock, s.K), options),
        right_keys(1, Tiles::right_size(kBlock, s.K), options),
        queries(1, Tiles::right_size(s.K, s.L), options),
        grads(1, Tiles::right_size(s.K, s.L), options),
        right_queries(blocks(s), Tiles::right_size(kBlock, s.K), options),
        right_grads(blocks(s), Tiles::right_size(kBlock, s.K), options),
        weights(1, kBlock * Tiles::left_stride(kBlock), options),
        d_scores(1, kBlock * Tiles::left_stride(kBlock), options),
        d_scores_left(1, Tiles::left_size<Order::kColumns>(kBlock, kBlock), options),
        tile(1, kTile * kTile, options),
        d_tile(1, kTile * kTile, options),
        d_keys(1, kBlock * s.width(), options),
        d_values(1, kBlock * s.width(), options),
        d_queries(1, round_up(s.L, kTile) * s.width(), options),
        logsumexp(1, round_up(s.L, kTile), options),
        means(1, round_up(s.L, kTile), options) {}

  static int64_t blocks(const AttentionSizes& s) { return round_up(s.L, kBlock) / kBlock; }
};

struct BackwardHead {
  Rows grad_y, q, k, v, y, grad_q, grad_k, grad_v;
  const float* logsumexp_L;
};

void prefetch_rows(const Number* a, const Number* b, int64_t count) {
  constexpr int64_t kLine = 64 / sizeof(Number);
  for (int64_t i = 0; i < count; i += kLine) {
    __builtin_prefetch(a + i);
    __builtin_prefetch(b + i);
  }
}

// Fills the numbers per query: log2 of the sum of exponentials, and the sum of grad_y y, which is the mean
// gradient of the weights. They are 0 for the padding of the last tile, as are its scores. Thus its
// exponentials stay finite.
void fill_means(const BackwardHead& in, const AttentionSizes& s, const BackwardBuffers& own) {
  run_widest([&] {
    for (int64_t l = 0; l < round_up(s.L, kTile); ++l) {
      float sum = 0;
      if (l < s.L) {
        const Number *y = in.y(l), *grad = in.grad_y(l);
        if (l + kAhead < s.L) prefetch_rows(in.y(l + kAhead), in.grad_y(l + kAhead), s.K);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < s.K; ++i) sum += load(y[i]) * load(grad[i]);
      }
      own.means.of(0)[l] = sum;
      own.logsumexp.of(0)[l] = l < s.L ? in.logsumexp_L[l] * kLog2E : 0;
    }
  });
}

// Adds the part of one block of keys and one of queries to the gradients.
void add_block(const AttentionSizes& s, int64_t key, int64_t query, bool first, const BackwardBuffers& own) {
  const int64_t keys = std::min(kBlock, s.L - key), queries = std::min(kBlock, s.L - query);
  const int64_t stride = Tiles::left_stride(s.K), width = s.width(), panel = kTile * Tiles::depth(s.K);
  const int64_t long_stride = Tiles::left_stride(kBlock), step = kTile * Tiles::depth(queries);
  const int64_t first_panel = query / kTile, block = query / kBlock;
  for (int64_t j = 0; j < keys; j += kTile) {
    const int64_t strip = std::min(kTile, keys - j), shift = key + j - query;
    const int64_t begin = s.causal ? std::max<int64_t>(shift, 0) : 0;  // the first query that sees the strip
    Number *weights = own.weights.of(0) + j * long_stride, *d_scores = own.d_scores.of(0) + j * long_stride;
    for (int64_t i = begin; i < queries; i += kTile) {
      float *tile = own.tile.of(0), *d_tile = own.d_tile.of(0);
      multiply(own.key_rows.of(0) + j * stride, stride, own.queries.of(0) + (first_panel + i / kTile) * panel,
               0, strip, kTile, s.K, false, tile, kTile);
      multiply(own.value_rows.of(0) + j * stride, stride, own.grads.of(0) + (first_panel + i / kTile) * panel,
               0, strip, kTile, s.K, false, d_tile, kTile);
      bfloat16_loops().softmax_gradients(
          tile, d_tile, strip,
          {own.logsumexp.of(0) + query + i, own.means.of(0) + query + i, s.scale(), s.causal && i == shift,
           weights + i, d_scores + i, long_stride});
    }
    const auto add = [&](const Number* left, const Number* right, float* sums) {
      multiply(left + begin, long_stride, right + begin * kTile, step, strip, width, queries - begin, !first,
               sums + j * width, width);
    };
    add(weights, own.right_grads.of(block), own.d_values.of(0));
    add(d_scores, own.right_queries.of(block), own.d_keys.of(0));
  }
  Tiles::pack_left_columns([&](int64_t j) { return own.d_scores.of(0) + j * long_stride; },
                           round_up(queries, kTile), keys, own.d_scores_left.of(0));
  const int64_t left_stride = Tiles::left_stride(keys);
  for (int64_t i = 0; i < queries; i += kTile) {
    const int64_t seen = s.causal ? std::min(keys, query + i + kTile - key) : keys;
    if (seen <= 0) continue;
    multiply(own.d_scores_left.of(0) + i * left_stride, left_stride, own.right_keys.of(0),
             kTile * Tiles::depth(keys), std::min(kTile, queries - i), width, seen, key > 0,
             own.d_queries.of(0) + (query + i) * width, width);
  }
}

// Packs a head's queries or the gradients of its results, for all blocks of keys.
void pack_queries(const Rows& rows, const AttentionSizes& s, Number* transposed,
                  const BufferParts<Number>& right) {
  Tiles::pack_right_transposed(rows.first, rows.stride, s.K, s.L, 0, s.L, transposed);
  for (int64_t query = 0; query < s.L; query += kBlock)
    Tiles::pack_right_rows([&](int64_t i) { return rows(query + i); }, std::min(kBlock, s.L - query), s.K, 0,
                           s.K, right.of(query / kBlock));
}

void backward_head(const BackwardHead& in, const AttentionSizes& s, const BackwardBuffers& own) {
  const auto write = [&](const float* sums, int64_t count, const Rows& rows, int64_t begin) {
    for (int64_t i = 0; i < count; ++i) bfloat16_loops().convert(sums + i * s.width(), rows(begin + i), s.K);
  };
  fill_means(in, s, own);
  pack_queries(in.q, s, own.queries.of(0), own.right_queries);
  pack_queries(in.grad_y, s, own.grads.of(0), own.right_grads);
  for (int64_t key = 0; key < s.L; key += kBlock) {
    const int64_t keys = std::min(kBlock, s.L - key);
    pack_left_rows<Tiles>([&](int64_t j) { return in.k(key + j); }, keys, s.K, own.key_rows.of(0));
    pack_left_rows<Tiles>([&](int64_t j) { return in.v(key + j); }, keys, s.K, own.value_rows.of(0));
    Tiles::pack_right_rows([&](int64_t j) { return in.k(key + j); }, keys, s.K, 0, s.K, own.right_keys.of(0));
    const int64_t first = s.causal ? key : 0;
    for (int64_t query = first; query < s.L; query += kBlock) add_block(s, key, query, query == first, own);
    write(own.d_keys.of(0), keys, in.grad_k, key);
    write(own.d_values.of(0), keys, in.grad_v, key);
  }
  write(own.d_queries.of(0), s.L, in.grad_q, 0);
}

}  // namespace
}  // namespace attention_tiles

std::array<at::Tensor, 3> attention_backward_in_tiles(const at::Tensor& grad_y, const at::Tensor& q,
                                                      const at::Tensor& k, const at::Tensor& v,
                                                      const AttentionResult& result, bool causal) {
  using namespace attention_tiles;
  const auto& [y, logsumexp] = result;
  RECORD_FUNCTION("dtopp::attention_backward",
                  (std::array<c10::IValue, 8>{grad_y, q, k, v, y, logsumexp, 0.0, causal}));
  const AttentionSizes s(q, causal);
  std::array<at::Tensor, 3> grads;
  for (at::Tensor& grad : grads) grad = s.empty(q.options());
  const Heads grad_y_heads(grad_y), q_heads(q), k_heads(k), v_heads(v), y_heads(y);
  const Heads grad_q(grads[0]), grad_k(grads[1]), grad_v(grads[2]);
  const auto* sums = logsumexp.const_data_ptr<float>();
  at::parallel_for(0, s.B * s.H, 1, [&](int64_t first, int64_t last) {
    const BackwardBuffers own(s, q.options());
    for (int64_t h = first; h < last; ++h)
      backward_head({grad_y_heads.of(h), q_heads.of(h), k_heads.of(h), v_heads.of(h), y_heads.of(h),
                     grad_q.of(h), grad_k.of(h), grad_v.of(h), sums + h * s.L},
                    s, own);
    Tiles::release();
  });
  RECORD_OUTPUTS(grads);
  return grads;
}

}  // namespace dtopp::ops
