// What moe_ffn's CPU forward and backward share: the pairs of each expert, row blocks over the threads,
// gathering and scattering rows.
#pragma once

#include <algorithm>
#include <vector>

#include "dtopp/ops/bfloat16.h"
#include "dtopp/ops/linear.h"
#include "dtopp/ops/moe_ffn_kernel.h"
#include "dtopp/ops/simd.h"

namespace dtopp {

// Experts run one after another, the rows of one in blocks over the threads. A token appears once per expert,
// so blocks never add to the same row of y or dx, and the order of every sum is fixed.
constexpr int64_t kSmallestBlock = 32;  // fewer rows than this do not repay a thread
constexpr int64_t kLargestBlock = 512;  // a block's buffers stay in the second-level cache

template <typename Body>
void for_row_blocks(int64_t rows, const Body& body) {
  const int64_t threads = at::get_num_threads();
  const int64_t block = std::clamp((rows + threads - 1) / threads, kSmallestBlock, kLargestBlock);
  const int64_t blocks = (rows + block - 1) / block;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) body(b * block, std::min(block, rows - b * block));
  });
}

// The token-expert pairs, ordered by expert, then token.
struct Assignment {
  std::vector<int64_t> offset_E1;  // expert e has the pairs [offset[e], offset[e + 1])
  std::vector<int64_t> token_A;
  int64_t most = 0;  // pairs of the busiest expert

  int64_t count(int64_t e) const { return offset_E1[e + 1] - offset_E1[e]; }
};

inline Assignment assign(const at::Tensor& pairs_A2, int64_t experts) {
  Assignment out;
  const int64_t pairs = pairs_A2.size(0);
  const auto pair = pairs_A2.accessor<int64_t, 2>();
  out.offset_E1.assign(experts + 1, 0);
  out.token_A.resize(pairs);
  for (int64_t a = 0; a < pairs; ++a) {
    ++out.offset_E1[pair[a][0] + 1];
    out.token_A[a] = pair[a][1];
  }
  for (int64_t e = 0; e < experts; ++e) {
    out.most = std::max(out.most, out.offset_E1[e + 1]);
    out.offset_E1[e + 1] += out.offset_E1[e];
  }
  return out;
}

// The type matrices are multiplied in: the tensors' own, but float for bfloat16 where the CPU would emulate
// it.
inline at::ScalarType product_dtype(const at::Tensor& x_TD) {
  const bool emulated = x_TD.scalar_type() == at::kBFloat16 && !has_bf16_matmul(x_TD.device());
  return emulated ? at::kFloat : x_TD.scalar_type();
}

template <typename From, typename To>
void convert(const From* from, To* to, int64_t count) {
  run_widest([&] {
    for (int64_t i = 0; i < count; ++i) store(to + i, load(from[i]));
  });
}

// weight[e] in the product's type; buffer is used when it has to be converted.
template <typename Scalar, typename Product>
at::Tensor expert_weight(const at::Tensor& weight, int64_t e, const at::Tensor& buffer) {
  const at::Tensor slice = weight.select(0, e);
  if constexpr (!std::is_same_v<Scalar, Product>) {
    const Scalar* from = slice.const_data_ptr<Scalar>();
    Product* to = buffer.mutable_data_ptr<Product>();
    at::parallel_for(0, slice.numel(), 1 << 16,
                     [&](int64_t begin, int64_t end) { convert(from + begin, to + begin, end - begin); });
    return buffer;
  }
  return slice;
}

template <typename Scalar, typename Product>
void gather(const Scalar* x_TD, const int64_t* tokens, int64_t rows, int64_t width, Product* out) {
  for (int64_t n = 0; n < rows; ++n) convert(x_TD + tokens[n] * width, out + n * width, width);
}

// y[token] += factor * row; factor 1 without gates.
template <typename Product, typename Real>
void scatter_add(const Product* rows_ND, const int64_t* tokens, int64_t rows, int64_t width,
                 const Real* gates_TE, int64_t gate_stride, Real* y_TD) {
  run_widest([&] {
    for (int64_t n = 0; n < rows; ++n) {
      const Real factor = gates_TE == nullptr ? Real(1) : gates_TE[tokens[n] * gate_stride];
      const Product* from = rows_ND + n * width;
      Real* to = y_TD + tokens[n] * width;
#pragma omp simd
      for (int64_t d = 0; d < width; ++d) to[d] += factor * load(from[d]);
    }
  });
}

template <typename Real>
[[gnu::always_inline]] inline Real sigmoid(Real x) {
  return 1 / (1 + fast_exp(-x));
}

// Rows [begin, begin + rows) of a buffer, and their start as a pointer.
inline at::Tensor row_block(const at::Tensor& buffer, int64_t begin, int64_t rows) {
  return buffer.narrow(0, begin, rows);
}

template <typename Scalar>
Scalar* row_start(const at::Tensor& buffer, int64_t begin) {
  return buffer.mutable_data_ptr<Scalar>() + begin * buffer.size(1);
}

// Calls body with the tensors' type and the product's type as values of those types.
template <typename Body>
void dispatch(const at::Tensor& x_TD, const Body& body) {
  if (x_TD.scalar_type() == at::kDouble) return body(double{}, double{});
  if (x_TD.scalar_type() == at::kFloat) return body(float{}, float{});
  if (product_dtype(x_TD) == at::kFloat) return body(c10::BFloat16{}, float{});
  body(c10::BFloat16{}, c10::BFloat16{});
}

// Threads of the pool have their own autograd state: what they read must not require gradients.
inline at::Tensor plain(const at::Tensor& tensor) { return tensor.detach().contiguous(); }

}  // namespace dtopp
