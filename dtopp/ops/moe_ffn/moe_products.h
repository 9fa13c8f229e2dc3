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

namespace dtopp {

enum class MoeProduct {
  kActivation,
  kProjection,
  kActivationGradient,
  kInputGradient,
  kDownGradient,
  kGateUpGradient,
};

// The names that users write.
inline constexpr std::array<std::string_view, 6> kMoeProductNames = {
    "activation", "projection", "activation_gradient", "input_gradient", "down_gradient", "gate_up_gradient"};

std::optional<MoeProduct> moe_product_named(std::string_view name);

// Lowest compute capability of the fused kernels; 80 is 8.0.
inline constexpr int64_t kOwnCapability = 80;

// The GEMMs that use fused kernels.
using OwnProducts = std::bitset<kMoeProductNames.size()>;

// Parses "grouped_mm" (none), "fused" (all) or names separated by commas. Returns nullopt for any other text.
std::optional<OwnProducts> parse_own_products(std::string_view text);

// Returns a text that parse_own_products parses to `own`.
std::string own_products_text(const OwnProducts& own);

// Returns "grouped_mm, fused or a list of activation, …", the values of parse_own_products, for messages.
std::string known_own_products();

// Returns the value of the environment variable DTOPP_MOE_PRODUCTS, or nullopt if it is unset or empty.
// Throws c10::Error if the value is invalid.
std::optional<OwnProducts> wished_own_products();

// Returns the process-wide choice: that of the environment variable if it is set, else the last call of
// choose_own_products, else none.
OwnProducts own_products();
void choose_own_products(const OwnProducts& own);

}  // namespace dtopp
