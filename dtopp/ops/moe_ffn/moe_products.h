// The six matrix products of moe_ffn, and which of them own kernels form on a CUDA device, where torch's
// grouped product forms the others.
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

// As users write them.
inline constexpr std::array<std::string_view, 6> kMoeProductNames = {
    "activation", "projection", "activation_gradient", "input_gradient", "down_gradient", "gate_up_gradient"};

std::optional<MoeProduct> moe_product_named(std::string_view name);

// Own kernels are for this compute capability and above (80: 8.0).
inline constexpr int64_t kOwnCapability = 80;

// By own kernels.
using OwnProducts = std::bitset<kMoeProductNames.size()>;

// "grouped_mm": none; "fused": all; else names with commas between. nullopt for any other text.
std::optional<OwnProducts> parse_own_products(std::string_view text);

// A text that stands for them.
std::string own_products_text(const OwnProducts& own);

// "grouped_mm, fused or a list of activation, …": what parse_own_products takes, for messages.
std::string known_own_products();

// What the environment variable DTOPP_MOE_PRODUCTS says; nullopt where it says nothing. c10::Error for a
// value that means nothing.
std::optional<OwnProducts> wished_own_products();

// What the environment says, else what was chosen, for this process; none until then.
OwnProducts own_products();
void choose_own_products(const OwnProducts& own);

}  // namespace dtopp
