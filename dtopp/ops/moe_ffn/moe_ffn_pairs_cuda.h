// The token–expert pairs of moe_ffn on a CUDA device, and GEMMs of each expert's rows with its weight.
#pragma once

#include "dtopp/ops/cuda/cuda_tensor.h"
#include "dtopp/ops/moe_ffn/cuda/fused/expert_gemm.h"
#include "dtopp/ops/moe_ffn/moe_ffn_cuda.h"

namespace dtopp::ops::cuda {

// The kernels that compute moe_ffn's GEMMs.
struct GemmChoice {
  FusedKernelSet fused{};  // GEMMs of fused kernels, which include the steps before and after
  // The other GEMMs use one at::_grouped_mm for all experts. If false, they use one GEMM per expert, whose
  // offsets are read on the host: the reference path.
  bool grouped = false;

  bool is_fused(ExpertGemm gemm) const { return fused[static_cast<size_t>(gemm)]; }
  bool need_offsets_on_host() const { return !grouped && !fused.all(); }
};

// Returns the tensor itself if it is contiguous and begins at a multiple of 16 bytes, as the GEMMs require,
// else a copy that does.
at::Tensor aligned(const at::Tensor& tensor);

struct Pairs {
  at::Tensor offsets_E1;   // int32; moe_ffn_cuda.h describes these four
  at::Tensor token_A;      // int32
  at::Tensor gate_A;       // f32 (f64)
  at::Tensor position_TE;  // int32
  GemmChoice gemms;
  std::vector<int64_t> host_offsets_E1;  // only if GemmChoice::need_offsets_on_host()

  int64_t capacity() const { return token_A.size(0); }
  PairRows rows() const { return {read<int32_t>(offsets_E1) + offsets_E1.size(0) - 1, capacity()}; }
};

// Finds the pairs, up to `capacity`. With capacity = 0 the capacity is the number of pairs, which the host
// reads.
Pairs make_pairs(const at::Tensor& gates_TE, int64_t capacity, const GemmChoice& gemms);

// The functions below serve GEMMs without a fused kernel. gather_pairs returns x_TD[token_A]. Rows beyond the
// pairs stay uninitialized, also in the results of the GEMMs.
at::Tensor gather_pairs(const Pairs& pairs, const at::Tensor& x_TD);

// Returns rows_AK[a] weight_EKN[e] for the pairs a of each expert e: [A, N].
at::Tensor multiply_pairs(const Pairs& pairs, const at::Tensor& rows_AK, const at::Tensor& weight_EKN);

// Returns the sum over each expert's pairs a of left_AM[a]^T right_AN[a], formed in fp32 and rounded once:
// [E, M, N].
at::Tensor sum_pair_products(const Pairs& pairs, const at::Tensor& left_AM, const at::Tensor& right_AN);

// Returns per token the sum of its pairs' rows, times their gates if gates_TE is defined: [T, D]. RowSums
// describes the order of the sum.
at::Tensor sum_pairs(const Pairs& pairs, const at::Tensor& rows_AD, const at::Tensor& gates_TE);

}  // namespace dtopp::ops::cuda
