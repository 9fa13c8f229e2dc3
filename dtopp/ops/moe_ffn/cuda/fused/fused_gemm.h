// The fused GEMMs of moe_ffn on a CUDA device, in bf16 with fp32 sums. Rows are gathered as they are loaded.
// The activation, its gradient and the gates' gradients are computed from the sums in registers.
//
// One launch covers all experts. Their offsets are read on the device, and no row beyond the last pair is
// read or written. Compute capability 9.0 uses wgmma; 8.0 and above use mma.
//
// Shapes:        A pairs (moe_ffn_cuda.h), D hidden size, F FFN size, G = 2 F
// Preconditions: supports_fused_gemm; addresses are multiples of 16 bytes
#pragma once

#include "dtopp/ops/cuda/cuda_types.h"

namespace dtopp::ops::cuda {

// Returns the compute capability of the current device; 90 is 9.0.
int64_t current_capability();

// Returns true if the kernels accept these sizes and the current device.
bool supports_fused_gemm(int64_t hidden, int64_t ffn);

// The arguments that the GEMMs of a layer share.
struct FusedGemm {
  const int32_t *offsets_E1, *token_A;
  int64_t experts, hidden, ffn;
  Stream stream;
};

// pre_AG[a] = gate_up_EGD[e] x_TD[token_A[a]], rounded. act_AF = silu(gate) * up for pre_AG = (gate, up).
struct Activations {
  const Bfloat16 *x_TD, *gate_up_EGD;
  Bfloat16 *pre_AG, *act_AF;
};
void fused_activation(const FusedGemm& layer, const Activations& in);

// out_AD[a] = down_EDF[e] act_AF[a]
void fused_projection(const FusedGemm& layer, const Bfloat16* act_AF, const Bfloat16* down_EDF,
                      Bfloat16* out_AD);

// For dA[a] = dy_TD[token_A[a]]^T down_EDF[e], the gradient of r A for a pair's activation A and gate r.
// Results: d_pre_AG; scaled_AF = r A, for the gradient of down; grad_gate_AP: <dA, A> in gate_parts(ffn)
// parts.
struct ActivationGradients {
  const Bfloat16 *dy_TD, *down_EDF, *pre_AG;
  const float* gate_A;
  Bfloat16 *d_pre_AG, *scaled_AF;
  float* grad_gate_AP;
};
void fused_activation_gradient(const FusedGemm& layer, const ActivationGradients& in);
int64_t gate_parts(int64_t ffn);

// dx_AD[a] = d_pre_AG[a]^T gate_up_EGD[e]
void fused_input_gradient(const FusedGemm& layer, const Bfloat16* d_pre_AG, const Bfloat16* gate_up_EGD,
                          Bfloat16* dx_AD);

// Destination of sums over an expert's pairs a, which are 0 for an expert without pairs. If `sum` is null,
// the sums are rounded to `rounded`. Otherwise they are added to `sum` if `add` is set, and overwrite it if
// not.
struct WeightGradient {
  Bfloat16* rounded;
  float* sum = nullptr;
  bool add = false;
};
// grad_gate_up_EGD[e] = sum d_pre_AG[a] x_TD[token_A[a]]^T
void fused_gate_up_gradient(const FusedGemm& layer, const Bfloat16* d_pre_AG, const Bfloat16* x_TD,
                            const WeightGradient& grad_gate_up_EGD);
// grad_down_EDF[e] = sum dy_TD[token_A[a]] scaled_AF[a]^T
void fused_down_gradient(const FusedGemm& layer, const Bfloat16* dy_TD, const Bfloat16* scaled_AF,
                         const WeightGradient& grad_down_EDF);

}  // namespace dtopp::ops::cuda
