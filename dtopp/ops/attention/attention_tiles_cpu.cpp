// Forward: each thread takes blocks of queries. It computes the scores of a strip of queries and a block of
// keys, replaces them by exponentials relative to the highest score so far, and adds their products with the
// values.
//
// Backward: each thread takes heads. It forms scores and their gradients transposed, with a row per key, in
// tiles that stay in the first-level cache. Thus both are left operands of the gradients of v and k. A
// transposition of each strip of queries makes the gradients of the scores the left operand of the gradient
// of q.
//
// The kinds of tiles are bf16 on a CPU that multiplies bf16, and float for fp32 and for bf16 on other CPUs.
#include <limits>

#include <ATen/record_function.h>

#include "dtopp/ops/attention/attention.h"
#include "dtopp/ops/gemm/cpu_kernel.h"
#include "dtopp/ops/gemm/linear.h"

namespace dtopp::ops {
namespace attention_tiles {
namespace {

constexpr int64_t kTile = 64;                 // rows and columns of a tile of scores
constexpr int64_t kLargestHead = kTileDepth;  // a packed row of a head must be one block of float tiles

struct AttentionSizes {
  int64_t B, H, L, K;
  bool causal;

  AttentionSizes(const Tensor& q_BHLK, bool is_causal)
      : B(q_BHLK.size(0)), H(q_BHLK.size(1)), L(q_BHLK.size(2)), K(q_BHLK.size(3)), causal(is_causal) {}

  float scale() const { return 1 / std::sqrt(static_cast<float>(K)); }
  int64_t width() const { return round_up(K, kTile); }  // of a row of sums

  // Memory for a tensor [B, H, L, K]. The heads of a token lie side by side, as projections expect them.
  Tensor empty(const at::TensorOptions& options) const {
    return at::empty({B, L, H, K}, options).transpose(1, 2);
  }
};

// The rows of one head, `stride` numbers apart.
template <typename Scalar>
struct Rows {
  Scalar* first;
  int64_t stride;

  Scalar* operator()(int64_t i) const { return first + i * stride; }
};

// The heads of a tensor [B, H, L, K].
template <typename Scalar>
struct Heads {
  Tensor x_BHLK;

  explicit Heads(const Tensor& x) : x_BHLK(x.stride(-1) == 1 ? x : x.contiguous()) {}

  Rows<Scalar> of(int64_t head) const {  // head < B H
    const int64_t H = x_BHLK.size(1);
    return {x_BHLK.data_ptr<Scalar>() + head / H * x_BHLK.stride(0) + head % H * x_BHLK.stride(1),
            x_BHLK.stride(2)};
  }
};

// A left operand is packed by rows, row_stride(K) numbers apart. A right operand is packed in panels of
// panel() columns; column n begins at number n * depth(K), if n is a multiple of panel().
//
//   kForwardBlock   queries, and keys, of a block in the forward pass; at most kTileDepth for float tiles
//   kBase           factor of exponents: log2(e) if powers are of 2
template <typename Tiles>
struct Kind;

template <>
struct Kind<Bfloat16Tiles> {
  using Tiles = Bfloat16Tiles;
  using Number = c10::BFloat16;
  static constexpr int64_t kForwardBlock = 512;
  static constexpr float kBase = kLog2E;

  static int64_t panel() { return kPanelColumns; }
  static int64_t depth(int64_t K) { return Tiles::depth(K); }
  static int64_t row_stride(int64_t K) { return Tiles::left_stride(K); }

  // C [M, N] = A B, or += if `add`, for M up to kTile. A's rows are `stride` numbers apart and B's panels
  // `step`. C has whole tiles.
  template <Order kOrder>
  static void multiply(const Number* A, int64_t stride, const Number* B, int64_t step, int64_t M, int64_t N,
                       int64_t K, bool add, float* C, int64_t ldc) {
    for (int64_t n = 0; n < N; n += kTile)
      MatrixUnit::multiply(round_up(M, Tiles::kUnit), kTile, depth(K), stride, kTile, ldc, add, A,
                           B + n / kTile * step, C + n);
  }

  // See Bfloat16Loops.
  static float softmax(float* scores, int64_t count, int64_t padded, float scale, float& highest,
                       Number* weights) {
    return bfloat16_loops().softmax(scores, count, padded, scale * kBase, highest, weights);
  }
  static void softmax_gradients(const float* tile, const float* d_tile, int64_t rows,
                                const SoftmaxGradients<Number>& to) {
    bfloat16_loops().softmax_gradients(tile, d_tile, rows, to);
  }
};

template <>
struct Kind<VectorTiles<float>> {
  using Tiles = VectorTiles<float>;
  using Number = float;
  static constexpr int64_t kForwardBlock = 256;
  static constexpr float kBase = 1;

  static int64_t panel() { return Tiles::shape().columns; }
  static int64_t depth(int64_t K) { return K; }
  static int64_t row_stride(int64_t /*K*/) { return kStripStride; }

  template <Order kOrder>
  static void multiply(const Number* A, int64_t /*stride*/, const Number* B, int64_t step, int64_t M,
                       int64_t N, int64_t K, bool add, float* C, int64_t ldc) {
    for (int64_t n = 0, columns = panel(); n < N; n += columns, B += step)
      Tiles::multiply<kOrder>(A, B, M, std::min(columns, N - n), K, C + n, ldc, add);
  }

  [[gnu::always_inline]] static float softmax(float* scores, int64_t count, int64_t padded, float scale,
                                              float& highest, Number* weights) {
    int32_t most = ordered(std::bit_cast<int32_t>(highest));
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < count; ++i) most = std::max(most, ordered(std::bit_cast<int32_t>(scores[i])));
    const auto largest = std::bit_cast<float>(ordered(most));
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < count; ++i) {
      weights[i] = fast_exp(scale * (scores[i] - largest));
      total += weights[i];
    }
    std::fill(weights + count, weights + std::max(count, padded), 0.0F);
    highest = largest;
    return total;
  }

  static void softmax_gradients(const float* tile, const float* d_tile, int64_t rows,
                                const SoftmaxGradients<Number>& to) {
    run_widest([&] {
      for (int64_t j = 0; j < rows; ++j, tile += kTile, d_tile += kTile) {
        float *weights = to.weights + j * to.stride, *d_scores = to.d_scores + j * to.stride;
        const float *logsumexp = to.logsumexp, *means = to.means, scale = to.scale;
#pragma omp simd
        for (int64_t i = 0; i < kTile; ++i) {
          const float weight = fast_exp(scale * tile[i] - logsumexp[i]);
          weights[i] = weight;
          d_scores[i] = scale * weight * (d_tile[i] - means[i]);
        }
        if (!to.diagonal) continue;
        std::fill_n(weights, j, 0.0F);
        std::fill_n(d_scores, j, 0.0F);
      }
    });
  }

 private:
  // Floats as integers of the same order; NaNs are the highest. It is its own inverse.
  [[gnu::always_inline]] static int32_t ordered(int32_t bits) { return bits ^ (bits >> 31 & 0x7FFFFFFF); }
};

// Calls `body` with a number of the tensor's type, float or bf16, and the tiles that multiply it.
template <typename Body>
void dispatch_kind(const Tensor& q, const Body& body) {
  if (q.scalar_type() == at::kFloat) return body(float{}, VectorTiles<float>{});
  if (MatrixUnit::available()) return body(c10::BFloat16{}, Bfloat16Tiles{});
  body(c10::BFloat16{}, VectorTiles<float>{});
}

// Tiles hold heads of kLargestHead numbers at most.
bool multiplies_in_tiles(const Tensor& q) {
  const bool fits = q.size(3) <= kLargestHead;
  return fits && (q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16);
}

bool widens(const Tensor& q) { return q.scalar_type() == at::kBFloat16 && !has_bf16_matmul(q.device()); }

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
void attend_to_all(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionSizes& s,
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

constexpr int64_t kBlock = 256;  // queries, and keys, that are multiplied at once
static_assert(kBlock <= kTileDepth);

template <typename Tiles>
struct BackwardBuffers {
  using Number = typename Tiles::Packed;
  BufferParts<Number> key_rows, value_rows, right_keys;  // of a block of keys
  BufferParts<Number> queries, grads;                    // of a head
  BufferParts<Number> right_queries, right_grads;        // of a head, a part per block of queries
  BufferParts<Number> weights, d_scores;                 // of two blocks, transposed
  BufferParts<Number> d_scores_left;                     // of a strip of queries and a block of keys
  BufferParts<float> tile, d_tile, d_keys, d_values, d_queries, logsumexp, means;  // sums, and two per query

  BackwardBuffers(const AttentionSizes& s, const at::TensorOptions& options)
      : key_rows(1, Tiles::template left_size<Order::kRows>(kBlock, s.K), options),
        value_rows(1, Tiles::template left_size<Order::kRows>(kBlock, s.K), options),
        right_keys(1, Tiles::right_size(kBlock, s.K), options),
        queries(1, Tiles::right_size(s.K, s.L), options),
        grads(1, Tiles::right_size(s.K, s.L), options),
        right_queries(blocks(s), Tiles::right_size(kBlock, s.K), options),
        right_grads(blocks(s), Tiles::right_size(kBlock, s.K), options),
        weights(1, kBlock * Kind<Tiles>::row_stride(kBlock), options),
        d_scores(1, kBlock * Kind<Tiles>::row_stride(kBlock), options),
        d_scores_left(1, Tiles::template left_size<Order::kColumns>(kTile, kBlock), options),
        tile(1, kTile * kTile, options),
        d_tile(1, kTile * kTile, options),
        d_keys(1, kBlock * s.width(), options),
        d_values(1, kBlock * s.width(), options),
        d_queries(1, round_up(s.L, kTile) * s.width(), options),
        logsumexp(1, round_up(s.L, kTile), options),
        means(1, round_up(s.L, kTile), options) {}

  static int64_t blocks(const AttentionSizes& s) { return round_up(s.L, kBlock) / kBlock; }
};

template <typename Scalar>
struct BackwardHead {
  Rows<Scalar> grad_y, q, k, v, y, grad_q, grad_k, grad_v;
  const float* logsumexp_L;
};

// Fills the numbers per query: its logsumexp, and the sum of grad_y y, which is the mean gradient of the
// weights. They are 0 for the padding of the last tile, as are its scores. Thus its exponentials stay finite.
template <typename Scalar, typename Tiles>
void fill_means(const BackwardHead<Scalar>& in, const AttentionSizes& s, const BackwardBuffers<Tiles>& own) {
  constexpr int64_t kAhead = 16;  // the rows of a head lie apart, so the processor does not prefetch them
  constexpr int64_t kLine = 64 / sizeof(Scalar);
  float *means = own.means.of(0), *logsumexp = own.logsumexp.of(0);
  run_widest([&] {
    for (int64_t l = 0; l < s.L; ++l) {
      const Scalar *y = in.y(l), *grad = in.grad_y(l);
      for (int64_t i = 0; l + kAhead < s.L && i < s.K; i += kLine) {
        __builtin_prefetch(in.y(l + kAhead) + i);
        __builtin_prefetch(in.grad_y(l + kAhead) + i);
      }
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < s.K; ++i) sum += load(y[i]) * load(grad[i]);
      means[l] = sum;
      logsumexp[l] = in.logsumexp_L[l] * Kind<Tiles>::kBase;
    }
  });
  std::fill(means + s.L, means + round_up(s.L, kTile), 0.0F);
  std::fill(logsumexp + s.L, logsumexp + round_up(s.L, kTile), 0.0F);
}

// Adds the part of one block of keys and one of queries to the gradients.
template <typename Tiles>
void add_block(const AttentionSizes& s, int64_t key, int64_t query, bool first,
               const BackwardBuffers<Tiles>& own) {
  using Kind = Kind<Tiles>;
  const int64_t keys = std::min(kBlock, s.L - key), queries = std::min(kBlock, s.L - query);
  const int64_t stride = Kind::row_stride(s.K), long_stride = Kind::row_stride(kBlock), width = s.width();
  const int64_t depth = Kind::depth(s.K), panel = Kind::panel(), block = query / kBlock;
  float *tile = own.tile.of(0), *d_tile = own.d_tile.of(0);
  for (int64_t j = 0; j < keys; j += kTile) {
    const int64_t strip = std::min(kTile, keys - j), shift = key + j - query;
    const int64_t begin = s.causal ? std::max<int64_t>(shift, 0) : 0;  // the first query that sees the strip
    auto *weights = own.weights.of(0) + j * long_stride, *d_scores = own.d_scores.of(0) + j * long_stride;
    for (int64_t i = begin; i < queries; i += kTile) {
      const auto multiply = [&](const auto* left, const auto* right, float* to) {
        Kind::template multiply<Order::kRows>(left + j * stride, stride, right + (query + i) * depth,
                                              panel * depth, strip, std::min(kTile, queries - i), s.K, false,
                                              to, kTile);
      };
      multiply(own.key_rows.of(0), own.queries.of(0), tile);
      multiply(own.value_rows.of(0), own.grads.of(0), d_tile);
      Kind::softmax_gradients(tile, d_tile, strip,
                              {own.logsumexp.of(0) + query + i, own.means.of(0) + query + i, s.scale(),
                               s.causal && i == shift, weights + i, d_scores + i, long_stride});
    }
    const auto add = [&](const auto* left, const auto* right, float* sums) {
      Kind::template multiply<Order::kRows>(left + begin, long_stride, right + begin * panel,
                                            panel * Kind::depth(queries), strip, s.K, queries - begin, !first,
                                            sums + j * width, width);
    };
    add(weights, own.right_grads.of(block), own.d_values.of(0));
    add(d_scores, own.right_queries.of(block), own.d_keys.of(0));
  }
  for (int64_t i = 0; i < queries; i += kTile) {
    const int64_t strip = std::min(kTile, queries - i);
    const int64_t seen = s.causal ? std::min(keys, query + i + strip - key) : keys;
    if (seen <= 0) continue;
    auto* left = own.d_scores_left.of(0);
    Tiles::pack_left_columns([&](int64_t j) { return own.d_scores.of(0) + j * long_stride + i; }, strip, seen,
                             left);
    Kind::template multiply<Order::kColumns>(left, Kind::row_stride(seen), own.right_keys.of(0),
                                             panel * Kind::depth(keys), strip, s.K, seen, key > 0,
                                             own.d_queries.of(0) + (query + i) * width, width);
  }
}

// Packs a head's queries or the gradients of its results, for all blocks of keys.
template <typename Tiles, typename Scalar>
void pack_queries(const Rows<Scalar>& rows, const AttentionSizes& s, typename Tiles::Packed* transposed,
                  const BufferParts<typename Tiles::Packed>& right) {
  Tiles::pack_right_transposed(rows.first, rows.stride, s.K, s.L, 0, s.L, transposed);
  for (int64_t query = 0; query < s.L; query += kBlock)
    Tiles::pack_right_rows([&](int64_t i) { return rows(query + i); }, std::min(kBlock, s.L - query), s.K, 0,
                           s.K, right.of(query / kBlock));
}

template <typename Scalar, typename Tiles>
void backward_head(const BackwardHead<Scalar>& in, const AttentionSizes& s,
                   const BackwardBuffers<Tiles>& own) {
  const auto write = [&](const float* sums, int64_t count, const Rows<Scalar>& rows, int64_t begin) {
    run_widest([&] {
      for (int64_t i = 0; i < count; ++i) copy_converted(sums + i * s.width(), rows(begin + i), s.K);
    });
  };
  fill_means(in, s, own);
  pack_queries<Tiles>(in.q, s, own.queries.of(0), own.right_queries);
  pack_queries<Tiles>(in.grad_y, s, own.grads.of(0), own.right_grads);
  for (int64_t key = 0; key < s.L; key += kBlock) {
    const int64_t keys = std::min(kBlock, s.L - key);
    const auto key_row = [&](int64_t j) { return in.k(key + j); };
    pack_left_rows<Tiles>(key_row, keys, s.K, own.key_rows.of(0));
    pack_left_rows<Tiles>([&](int64_t j) { return in.v(key + j); }, keys, s.K, own.value_rows.of(0));
    Tiles::pack_right_rows(key_row, keys, s.K, 0, s.K, own.right_keys.of(0));
    const int64_t first = s.causal ? key : 0;
    for (int64_t query = first; query < s.L; query += kBlock)
      add_block<Tiles>(s, key, query, query == first, own);
    write(own.d_keys.of(0), keys, in.grad_k, key);
    write(own.d_values.of(0), keys, in.grad_v, key);
  }
  write(own.d_queries.of(0), s.L, in.grad_q, 0);
}

template <typename Scalar, typename Tiles>
void backward_of_all(const std::array<Tensor, 8>& tensors, const Tensor& logsumexp, const AttentionSizes& s) {
  std::vector<Heads<Scalar>> heads;
  heads.reserve(tensors.size());
  for (const Tensor& tensor : tensors) heads.emplace_back(tensor);
  const auto* sums = logsumexp.const_data_ptr<float>();
  at::parallel_for(0, s.B * s.H, 1, [&](int64_t first, int64_t last) {
    const BackwardBuffers<Tiles> own(s, tensors[0].options());
    for (int64_t h = first; h < last; ++h)
      backward_head<Scalar, Tiles>(
          {heads[0].of(h), heads[1].of(h), heads[2].of(h), heads[3].of(h), heads[4].of(h), heads[5].of(h),
           heads[6].of(h), heads[7].of(h), sums + h * s.L},
          s, own);
    Tiles::release();
  });
}

}  // namespace
}  // namespace attention_tiles

AttentionResult attention_cpu(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  using namespace attention_tiles;
  if (!multiplies_in_tiles(q)) {
    const at::ScalarType type = widens(q) ? at::kFloat : q.scalar_type();
    const auto [y, lse] =
        at::_scaled_dot_product_flash_attention_for_cpu(q.to(type), k.to(type), v.to(type), 0.0, causal);
    return {y.to(q.scalar_type()), lse};
  }
  RECORD_FUNCTION("dtopp::attention", (std::array<c10::IValue, 5>{q, k, v, 0.0, causal}));
  const AttentionSizes s(q, causal);
  AttentionResult out{s.empty(q.options()), at::empty({s.B, s.H, s.L}, q.options().dtype(at::kFloat))};
  dispatch_kind(
      q, [&](auto scalar, auto tiles) { attend_to_all<decltype(scalar), decltype(tiles)>(q, k, v, s, out); });
  RECORD_OUTPUTS(at::TensorList(out.y_BHLK));
  return out;
}

std::array<Tensor, 3> attention_backward_cpu(const Tensor& grad_y, const Tensor& q, const Tensor& k,
                                             const Tensor& v, const AttentionResult& result, bool causal) {
  using namespace attention_tiles;
  const Tensor &y = result.y_BHLK, &logsumexp = result.logsumexp_BHL;
  if (!multiplies_in_tiles(q)) {
    const at::ScalarType type = widens(q) ? at::kFloat : q.scalar_type();
    const auto [grad_q, grad_k, grad_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad_y.to(type), q.to(type), k.to(type), v.to(type), y.to(type), logsumexp, 0.0, causal);
    return {grad_q.to(q.scalar_type()), grad_k.to(q.scalar_type()), grad_v.to(q.scalar_type())};
  }
  RECORD_FUNCTION("dtopp::attention_backward",
                  (std::array<c10::IValue, 8>{grad_y, q, k, v, y, logsumexp, 0.0, causal}));
  const AttentionSizes s(q, causal);
  std::array<Tensor, 3> grads;
  for (Tensor& grad : grads) grad = s.empty(q.options());
  dispatch_kind(q, [&](auto scalar, auto tiles) {
    backward_of_all<decltype(scalar), decltype(tiles)>({grad_y, q, k, v, y, grads[0], grads[1], grads[2]},
                                                       logsumexp, s);
  });
  RECORD_OUTPUTS(grads);
  return grads;
}

}  // namespace dtopp::ops
