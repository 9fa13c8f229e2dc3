// The two kernels behind fused_gemm.h. Each computes one GEMM for all experts and processes its sums
// in registers.
#pragma once

#include "dtopp/ops/moe_ffn/cuda/fused/epilogues_cuda.h"
#include "dtopp/ops/moe_ffn/cuda/fused/tile_loader_cuda.h"

namespace dtopp::ops::cuda {

constexpr int kTileRows = 128;

// For compute capability 9.0, with tiles of 128 x 256.
template <typename Form, typename Epilogue>
void multiply_by_wgmma(const Gemm& gemm, const Epilogue& epilogue, const Device& device, Stream stream);

// For compute capability 8.0 and above, with tiles of 128 x 128.
template <typename Form, typename Epilogue>
void multiply_by_mma(const Gemm& gemm, const Epilogue& epilogue, const Device& device, Stream stream);

// Columns of a row that a warp processes together; they belong to one slice.
constexpr int kWgmmaSlice = kWgmmaColumns, kMmaSlice = 64;

// The forms of moe_ffn's GEMMs.
using ActivateForm = Form<false, false, Gathers::kLeft>;
using ProjectForm = Form<false, false, Gathers::kNothing>;
using ActivationGradientForm = Form<false, true, Gathers::kLeft>;
using InputGradientForm = Form<false, true, Gathers::kNothing>;
using GateUpGradientForm = Form<true, true, Gathers::kRight>;
using DownGradientForm = Form<true, true, Gathers::kLeft>;

template <typename Form>
using RoundOf = Round<Form::kInOrder>;

#define DTOPP_FOR_FUSED_GEMMS(multiply)                                                                      \
  template void multiply<ActivateForm>(const Gemm&, const Activate&, const Device&, Stream);                 \
  template void multiply<ProjectForm>(const Gemm&, const RoundOf<ProjectForm>&, const Device&, Stream);      \
  template void multiply<ActivationGradientForm>(const Gemm&, const ActivateBackward&, const Device&,        \
                                                 Stream);                                                    \
  template void multiply<InputGradientForm>(const Gemm&, const RoundOf<InputGradientForm>&, const Device&,   \
                                            Stream);                                                         \
  template void multiply<GateUpGradientForm>(const Gemm&, const RoundOf<GateUpGradientForm>&, const Device&, \
                                             Stream);                                                        \
  template void multiply<DownGradientForm>(const Gemm&, const RoundOf<DownGradientForm>&, const Device&,     \
                                           Stream);                                                          \
  template void multiply<GateUpGradientForm>(const Gemm&, const Accumulate&, const Device&, Stream);         \
  template void multiply<DownGradientForm>(const Gemm&, const Accumulate&, const Device&, Stream);

}  // namespace dtopp::ops::cuda
