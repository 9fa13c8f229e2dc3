// Shared by the forward and backward passes of attention in bf16 tiles (matrix_tiles_bf16.h).
#pragma once

#include <cmath>

#include "dtopp/ops/attention/attention_cpu.h"
#include "dtopp/ops/gemm/cpu_kernel.h"

namespace dtopp::ops {

// The passes. The functions of attention_cpu.h choose between them and libtorch's.
AttentionResult attention_in_tiles(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   bool causal);
std::array<at::Tensor, 3> attention_backward_in_tiles(const at::Tensor& grad_y, const at::Tensor& q,
                                                      const at::Tensor& k, const at::Tensor& v,
                                                      const AttentionResult& result, bool causal);

namespace attention_tiles {

using Tiles = Bfloat16Tiles;
using Number = c10::BFloat16;

constexpr int64_t kTile = kPanelColumns;  // rows and columns of a tile of scores

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
struct Rows {
  Number* first;
  int64_t stride;

  Number* operator()(int64_t i) const { return first + i * stride; }
};

// The heads of a tensor [B, H, L, K].
struct Heads {
  at::Tensor x_BHLK;

  explicit Heads(const at::Tensor& x) : x_BHLK(x.stride(-1) == 1 ? x : x.contiguous()) {}

  Rows of(int64_t head) const {  // head < B H
    const int64_t H = x_BHLK.size(1);
    return {x_BHLK.data_ptr<Number>() + head / H * x_BHLK.stride(0) + head % H * x_BHLK.stride(1),
            x_BHLK.stride(2)};
  }
};

// C [M, N] = A B, or += if `add`, for M up to kTile. A's rows are `stride` numbers apart and B's panels
// `step`.
inline void multiply(const Number* A, int64_t stride, const Number* B, int64_t step, int64_t M, int64_t N,
                     int64_t K, bool add, float* C, int64_t ldc) {
  for (int64_t n = 0; n < N; n += kTile)
    MatrixUnit::multiply(round_up(M, Tiles::kUnit), kTile, Tiles::depth(K), stride, kTile, ldc, add, A,
                         B + n / kTile * step, C + n);
}

}  // namespace attention_tiles
}  // namespace dtopp::ops
