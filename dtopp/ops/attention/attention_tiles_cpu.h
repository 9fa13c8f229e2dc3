// Shared by the forward and backward passes of attention on packed tiles: sizes, rows of a head, and what the
// passes need of each kind of tiles.
//
// The kinds are bf16 on a CPU that multiplies bf16, and float for fp32 and for bf16 on other CPUs.
#pragma once

#include <array>
#include <bit>
#include <cmath>

#include "dtopp/ops/gemm/cpu_kernel.h"

namespace dtopp::ops {

// Self-attention on a CPU, forward and backward, without autograd.
//
// fp32 and bf16 are multiplied on dtopp's tiles. libtorch computes heads of more than 256 numbers.

// The result of attention, and the logarithm of each token's sum of exponentials.
struct AttentionResult {
  at::Tensor y_BHLK, logsumexp_BHL;
};

// self_attention (attention.h). Results do not depend on the number of threads.
//
// Preconditions: q, k, v [B, H, L, K] of one shape, on a CPU, not empty
AttentionResult attention_cpu(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal);

// Returns the gradients of q, k and v.
std::array<at::Tensor, 3> attention_backward_cpu(const at::Tensor& grad_y, const at::Tensor& q,
                                                 const at::Tensor& k, const at::Tensor& v,
                                                 const AttentionResult& result, bool causal);

// The passes, of fp32 and bf16. The functions above choose between them and libtorch's.
AttentionResult attention_in_tiles(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   bool causal);
std::array<at::Tensor, 3> attention_backward_in_tiles(const at::Tensor& grad_y, const at::Tensor& q,
                                                      const at::Tensor& k, const at::Tensor& v,
                                                      const AttentionResult& result, bool causal);

namespace attention_tiles {

constexpr int64_t kTile = 64;                 // rows and columns of a tile of scores
constexpr int64_t kLargestHead = kTileDepth;  // a packed row of a head must be one block of float tiles

struct AttentionSizes {
  int64_t B, H, L, K;
  bool causal;

  AttentionSizes(const at::Tensor& q_BHLK, bool is_causal)
      : B(q_BHLK.size(0)), H(q_BHLK.size(1)), L(q_BHLK.size(2)), K(q_BHLK.size(3)), causal(is_causal) {}

  float scale() const { return 1 / std::sqrt(static_cast<float>(K)); }
  int64_t width() const { return round_up(K, kTile); }  // of a row of sums

  // Memory for a tensor [B, H, L, K]. The heads of a token lie side by side, as projections expect them.
  at::Tensor empty(const at::TensorOptions& options) const {
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
  at::Tensor x_BHLK;

  explicit Heads(const at::Tensor& x) : x_BHLK(x.stride(-1) == 1 ? x : x.contiguous()) {}

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
void dispatch_kind(const at::Tensor& q, const Body& body) {
  if (q.scalar_type() == at::kFloat) return body(float{}, VectorTiles<float>{});
  if (MatrixUnit::available()) return body(c10::BFloat16{}, Bfloat16Tiles{});
  body(c10::BFloat16{}, VectorTiles<float>{});
}

}  // namespace attention_tiles

}  // namespace dtopp::ops
