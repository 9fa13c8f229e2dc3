// The token–expert pairs of moe_ffn on a CUDA device, and GEMMs of each expert's rows with its weight.
#pragma once

#include "dtopp/ops/core/gradient_accumulation_hook.h"
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
Tensor aligned(const Tensor& tensor);

struct Pairs {
  Tensor offsets_E1;   // int32; moe_ffn_cuda.h describes these four
  Tensor token_A;      // int32
  Tensor gate_A;       // f32 (f64)
  Tensor position_TE;  // int32
  GemmChoice gemms;
  std::vector<int64_t> host_offsets_E1;  // only if GemmChoice::need_offsets_on_host()

  int64_t capacity() const { return token_A.size(0); }
  PairRows rows() const { return {read<int32_t>(offsets_E1) + offsets_E1.size(0) - 1, capacity()}; }
};

// Finds the pairs, up to `capacity`. With capacity = 0 the capacity is the number of pairs, which the host
// reads.
Pairs make_pairs(const Tensor& gates_TE, int64_t capacity, const GemmChoice& gemms);

// Returns per token the sum of its pairs' rows, times their gates if gates_TE is defined: [T, D]. RowSums
// describes the order of the sum.
Tensor sum_pairs(const Pairs& pairs, const Tensor& rows_AD, const Tensor& gates_TE);

// The GEMMs of moe_ffn on a CUDA device, with the steps between them. Pairs::gemms selects per GEMM:
// torch's grouped GEMM and separate kernels, or one fused kernel (fused_gemm.h).
//
// Shapes:        as in moe_ffn_cuda.h; rows beyond the pairs stay uninitialized

// Returns the reference path unless weights are bf16 with widths and addresses that are multiples of 16
// bytes, else the choice of fused_kernels() if the device and the widths support it. at::_grouped_mm accepts
// up to 1,023 experts; beyond that, GEMMs without a fused kernel take the reference path. Throws c10::Error
// if the environment variable DTOPP_MOE_KERNELS is invalid.
GemmChoice choose_gemms(const Tensor& gate_up_EGD, const Tensor& down_EDF);

struct ActivatedPairs {
  Tensor pre_AG, act_AF;
};
ActivatedPairs activate_pairs(const Pairs& pairs, const Tensor& x_TD, const Tensor& gate_up_EGD);

// [A, D]
Tensor project_pairs(const Pairs& pairs, const Tensor& act_AF, const Tensor& down_EDF);

// Gradients from that of a token's output sum.
struct ActivationGradient {
  Tensor d_pre_AG;
  Tensor scaled_AF;     // the activation times the pair's gate
  Tensor grad_gate_AP;  // in parts; the sum over P is the gate's gradient
  Tensor dy_AD;         // the pairs' rows of dy_TD, if they were gathered and are still needed
};
ActivationGradient activation_gradient(const Pairs& pairs, const Tensor& dy_TD, const Tensor& pre_AG,
                                       const Tensor& down_EDF);

// Returns an undefined tensor if the gradient went to `target`; gate_up_gradient does the same. The sum must
// be f32 for bf16 weights and aligned to 16 bytes.
Tensor down_gradient(const Pairs& pairs, const Tensor& dy_TD, const ActivationGradient& gradient,
                     const AccumulationTarget& target = {});

// [A, D]
Tensor input_gradient(const Pairs& pairs, const Tensor& d_pre_AG, const Tensor& gate_up_EGD);

Tensor gate_up_gradient(const Pairs& pairs, const Tensor& d_pre_AG, const Tensor& x_TD,
                        const AccumulationTarget& target = {});

}  // namespace dtopp::ops::cuda
