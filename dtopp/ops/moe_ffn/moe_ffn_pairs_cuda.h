// The token-expert pairs of moe_ffn on a CUDA device, and matrix products of each expert's rows with its
// weight.
#pragma once

#include "dtopp/ops/cuda/cuda_tensor.h"
#include "dtopp/ops/moe_ffn/moe_ffn_cuda.h"
#include "dtopp/ops/moe_ffn/moe_products.h"

namespace dtopp::cuda {

// What forms the products of each expert's rows.
struct Products {
  OwnProducts own{};  // kernels that do what stands before and after a product with it
  // The others: one at::_grouped_mm for all experts, else a product an expert, their offsets read on the
  // host: the reference path.
  bool grouped = false;

  bool by_own_kernel(MoeProduct product) const { return own[static_cast<size_t>(product)]; }
  bool need_offsets_on_host() const { return !grouped && !own.all(); }
};

// The reference path for weights that are not bf16 with widths and addresses that are multiples of 16 bytes,
// else what own_products() says; at::_grouped_mm takes a thousand experts. c10::Error where the environment
// variable DTOPP_MOE_PRODUCTS means nothing.
Products choose_products(const at::Tensor& gate_up_proj, const at::Tensor& down_proj);

// The tensor itself where it is contiguous and begins at a multiple of 16 bytes, as the products need it,
// else a copy that does.
at::Tensor aligned(const at::Tensor& tensor);

struct Pairs {
  at::Tensor offsets_E1;   // int32; as moe_ffn_cuda.h has them
  at::Tensor token_A;      // int32
  at::Tensor gate_A;       // f32 (f64)
  at::Tensor position_TE;  // int32
  Products products;
  std::vector<int64_t> host_offsets_E1;  // where the products need them

  int64_t capacity() const { return token_A.size(0); }
  PairRows rows() const { return {read<int32_t>(offsets_E1) + offsets_E1.size(0) - 1, capacity()}; }
};

// Room for max_pairs pairs; 0: for as many as there are, a number that is read on the host.
Pairs make_pairs(const at::Tensor& gates_TE, int64_t max_pairs, Products products);

// The functions below are for products that own kernels do not form.
// x_TD[token_A]; rows past the pairs are left as allocated, as in the products.
at::Tensor gather_pairs(const Pairs& pairs, const at::Tensor& x_TD);

// rows_AK[a] weight_EKN[e] for the pairs a of each expert e: [A, N].
at::Tensor multiply_pairs(const Pairs& pairs, const at::Tensor& rows_AK, const at::Tensor& weight_EKN);

// The sum over each expert's pairs a of left_AM[a]^T right_AN[a], in fp32, rounded once: [E, M, N].
at::Tensor sum_pair_products(const Pairs& pairs, const at::Tensor& left_AM, const at::Tensor& right_AN);

// For each token, the sum of its pairs' rows, times their gates where gates_TE is defined: [T, D]. Its order
// is RowSums'.
at::Tensor sum_pairs(const Pairs& pairs, const at::Tensor& rows_AD, const at::Tensor& gates_TE);

}  // namespace dtopp::cuda
