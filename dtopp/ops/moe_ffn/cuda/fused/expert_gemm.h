// The six GEMMs of moe_ffn, and the choice between fused kernels and torch's grouped GEMM for each of them on
// a CUDA device.
//
//   activation            x W_gate_up^T, then silu(gate) * up
//   projection            activation W_down^T
//   activation_gradient   dy W_down, then the gradients of SwiGLU and of the gate
//   input_gradient        d_pre W_gate_up
//   down_gradient         dy^T (gate * activation), summed over each expert's pairs
//   gate_up_gradient      d_pre^T x, summed over each expert's pairs
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dtopp::ops {

enum class ExpertGemm {
  kActivation,
  kProjection,
  kActivationGradient,
  kInputGradient,
  kDownGradient,
  kGateUpGradient,
};

// The names that users write.
inline constexpr std::array<std::string_view, 6> kExpertGemmNames = {
    "activation", "projection", "activation_gradient", "input_gradient", "down_gradient", "gate_up_gradient"};

// Lowest compute capability of the fused kernels; 80 is 8.0.
inline constexpr int64_t kFusedMinCapability = 80;

// The GEMMs that use fused kernels.
using FusedKernelSet = std::bitset<kExpertGemmNames.size()>;

// Parses "grouped_mm" (none), "fused" (all) or names separated by commas. Returns nullopt for any other text.
std::optional<FusedKernelSet> parse_fused_kernels(std::string_view text);

// Returns a text that parse_fused_kernels parses to `fused`.
std::string fused_kernels_text(const FusedKernelSet& fused);

// Returns the value of the environment variable DTOPP_MOE_KERNELS, or nullopt if it is unset or empty.
// Throws c10::Error if the value is invalid.
std::optional<FusedKernelSet> requested_fused_kernels();

// Returns the GEMMs that use fused kernels on a device of this compute capability (90 is 9.0): those of
// DTOPP_MOE_KERNELS if it is set, else those of a table.
FusedKernelSet fused_kernels(int64_t capability);

}  // namespace dtopp::ops
