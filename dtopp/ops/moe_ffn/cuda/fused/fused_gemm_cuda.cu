// Maps each fused GEMM to its operands, and launches it with wgmma or mma.
#include "dtopp/ops/moe_ffn/cuda/fused/expert_gemm.h"
#include "dtopp/ops/moe_ffn/cuda/fused/fused_gemm.h"
#include "dtopp/ops/moe_ffn/cuda/fused/gemm_kernels_cuda.h"

namespace dtopp::ops::cuda {
namespace {

bool has_wgmma(const Device& device) { return device.capability == 90; }

// M, N and K of a Gemm.
struct Sizes {
  int64_t rows, columns, depth;
};

template <typename Form, typename Epilogue>
void multiply(const FusedGemm& in, const Rows& left, const Rows& right, const Sizes& sizes,
              const Epilogue& epilogue) {
  const Gemm gemm{in.offsets_E1, static_cast<int>(in.experts), left, right, sizes.rows, sizes.columns,
                  sizes.depth};
  const Device device = current_device();
  if (has_wgmma(device)) {
    multiply_by_wgmma<Form>(gemm, epilogue, device, in.stream);
  } else {
    multiply_by_mma<Form>(gemm, epilogue, device, in.stream);
  }
}

template <typename Form>
void sum_over_pairs(const FusedGemm& in, const Rows& left, const Rows& right, const Sizes& sizes,
                    const WeightGradient& out) {
  if (out.sum != nullptr)
    return multiply<Form>(in, left, right, sizes, Accumulate{out.sum, sizes.rows, out.add});
  multiply<Form>(in, left, right, sizes, RoundOf<Form>{out.rounded, sizes.rows});
}

Rows rows(const Bfloat16* data, int64_t width) { return {data, nullptr, width}; }
Rows gathered(const FusedGemm& in, const Bfloat16* data_TD) { return {data_TD, in.token_A, in.hidden}; }

}  // namespace

int64_t current_capability() { return current_device().capability; }

bool supports_fused_gemm(int64_t hidden, int64_t ffn) {
  return hidden % kChunk == 0 && ffn % kChunk == 0 && current_capability() >= kFusedMinCapability;
}

void fused_activation(const FusedGemm& p, const Activations& in) {
  multiply<ActivateForm>(p, gathered(p, in.x_TD), rows(in.gate_up_EGD, p.hidden), {0, p.ffn, p.hidden},
                         Activate{in.pre_AG, in.act_AF});
}

void fused_projection(const FusedGemm& p, const Bfloat16* act_AF, const Bfloat16* down_EDF,
                      Bfloat16* out_AD) {
  multiply<ProjectForm>(p, rows(act_AF, p.ffn), rows(down_EDF, p.ffn), {0, p.hidden, p.ffn},
                        RoundOf<ProjectForm>{out_AD, 0});
}

void fused_activation_gradient(const FusedGemm& p, const ActivationGradients& in) {
  multiply<ActivationGradientForm>(
      p, gathered(p, in.dy_TD), rows(in.down_EDF, p.ffn), {0, p.ffn, p.hidden},
      ActivateBackward{in.pre_AG, in.gate_A, in.d_pre_AG, in.scaled_AF, in.grad_gate_AP, gate_parts(p.ffn)});
}

int64_t gate_parts(int64_t ffn) {
  return ceil_divide(ffn, has_wgmma(current_device()) ? kWgmmaSlice : kMmaSlice);
}

void fused_input_gradient(const FusedGemm& p, const Bfloat16* d_pre_AG, const Bfloat16* gate_up_EGD,
                          Bfloat16* dx_AD) {
  multiply<InputGradientForm>(p, rows(d_pre_AG, 2 * p.ffn), rows(gate_up_EGD, p.hidden),
                              {0, p.hidden, 2 * p.ffn}, RoundOf<InputGradientForm>{dx_AD, 0});
}

void fused_gate_up_gradient(const FusedGemm& p, const Bfloat16* d_pre_AG, const Bfloat16* x_TD,
                            const WeightGradient& out_EGD) {
  sum_over_pairs<GateUpGradientForm>(p, rows(d_pre_AG, 2 * p.ffn), gathered(p, x_TD),
                                     {2 * p.ffn, p.hidden, 0}, out_EGD);
}

void fused_down_gradient(const FusedGemm& p, const Bfloat16* dy_TD, const Bfloat16* scaled_AF,
                         const WeightGradient& out_EDF) {
  sum_over_pairs<DownGradientForm>(p, gathered(p, dy_TD), rows(scaled_AF, p.ffn), {p.hidden, p.ffn, 0},
                                   out_EDF);
}

}  // namespace dtopp::ops::cuda
