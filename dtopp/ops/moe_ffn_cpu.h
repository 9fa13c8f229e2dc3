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

// A group of experts at a time, each thread takes a range of tokens through all of them, so that no two add
// to the same row of y or dx, the order of every sum is fixed, and threads meet once a group rather than once
// an expert.
constexpr int64_t kGroupRows = 4096;    // bounds the buffers of a group
constexpr int64_t kGroupExperts = 8;    // bounds its converted weights
constexpr int64_t kLargestBlock = 512;  // a block's buffers stay in the second-level cache
constexpr int64_t kSmallestShare = 32;  // fewer rows than this do not repay a thread

// The token-expert pairs, ordered by expert, then token.
struct Assignment {
  std::vector<int64_t> offset_E1;  // expert e has the pairs [offset[e], offset[e + 1])
  std::vector<int64_t> token_A;

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
  for (int64_t e = 0; e < experts; ++e) out.offset_E1[e + 1] += out.offset_E1[e];
  return out;
}

// Experts [first, last), which have the pairs [pair, pair + rows).
struct ExpertGroup {
  int64_t first, last, pair, rows;

  int64_t experts() const { return last - first; }
};

// As many experts as have kGroupRows pairs together, but at least one; experts without pairs are in a group
// too.
inline std::vector<ExpertGroup> group_experts(const Assignment& pairs, int64_t experts) {
  std::vector<ExpertGroup> groups;
  for (int64_t e = 0; e < experts; ++e) {
    const bool full = groups.empty() || groups.back().experts() == kGroupExperts ||
                      groups.back().rows + pairs.count(e) > kGroupRows;
    if (full) groups.push_back({e, e, pairs.offset_E1[e], 0});
    groups.back().last = e + 1;
    groups.back().rows += pairs.count(e);
  }
  return groups;
}

// How many parts of `rows` rows are worth a thread each.
inline int64_t thread_shares(int64_t rows) {
  return std::clamp<int64_t>(rows / kSmallestShare, 1, at::get_num_threads());
}

// Rows of one expert whose tokens belong to one thread: pairs [pair, pair + rows).
struct RowBlock {
  int64_t expert, pair, rows;
  int64_t share;  // which thread's buffers
};

// Calls body(block) for all pairs of the group.
template <typename Body>
void for_row_blocks(const Assignment& pairs, const ExpertGroup& group, int64_t tokens, const Body& body) {
  const int64_t shares = thread_shares(tokens);
  const auto find = [&](int64_t e, int64_t token) {
    const auto begin = pairs.token_A.begin();
    return std::lower_bound(begin + pairs.offset_E1[e], begin + pairs.offset_E1[e + 1], token) - begin;
  };
  at::parallel_for(0, shares, 1, [&](int64_t begin, int64_t end) {
    for (int64_t share = begin; share < end; ++share) {
      for (int64_t e = group.first; e < group.last; ++e) {
        const int64_t last = find(e, tokens * (share + 1) / shares);
        for (int64_t pair = find(e, tokens * share / shares); pair < last; pair += kLargestBlock) {
          body(RowBlock{e, pair, std::min(kLargestBlock, last - pair), share});
        }
      }
    }
  });
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

inline int64_t most_rows(const std::vector<ExpertGroup>& groups) {
  int64_t most = 0;
  for (const ExpertGroup& group : groups) most = std::max(most, group.rows);
  return most;
}

// Room for the converted weights of a group; none where weights are multiplied as they are.
template <typename Scalar, typename Product>
at::Tensor weight_buffer(const at::Tensor& weight) {
  const auto options = weight.options().dtype(c10::CppTypeToScalarType<Product>::value);
  const int64_t experts = std::is_same_v<Scalar, Product> ? 0 : kGroupExperts;
  return at::empty({experts, weight.size(1), weight.size(2)}, options);
}

// The weights of a group in the product's type, [experts of the group, ., .]; of those with pairs where they
// have to be converted.
template <typename Scalar, typename Product>
at::Tensor group_weight(const at::Tensor& weight, const Assignment& pairs, const ExpertGroup& group,
                        const at::Tensor& buffer) {
  at::Tensor slice = weight.narrow(0, group.first, group.experts());
  if constexpr (std::is_same_v<Scalar, Product>) {
    return slice;
  } else {
    const Scalar* from = slice.const_data_ptr<Scalar>();
    Product* to = buffer.mutable_data_ptr<Product>();
    const int64_t size = weight.size(1) * weight.size(2);
    at::parallel_for(0, slice.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t e = begin / size, stop = std::min(end, (e + 1) * size);
        if (pairs.count(group.first + e) > 0) convert(from + begin, to + begin, stop - begin);
        begin = stop;
      }
    });
    return buffer;
  }
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
