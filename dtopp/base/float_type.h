// Converts the floating-point formats that tensor files use.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace dtopp {

enum class FloatType { kF32, kF16, kBF16 };

// The dtype name in safetensors.
constexpr auto enum_names(FloatType) { return std::to_array<std::string_view>({"F32", "F16", "BF16"}); }
uint64_t size_of(FloatType type);

// Converts all numbers to float exactly. `bytes` holds out.size() little-endian numbers.
void widen(FloatType type, std::span<const std::byte> bytes, std::span<float> out);

// True if no number is infinite or NaN.
bool all_finite(FloatType type, std::span<const std::byte> bytes);

}  // namespace dtopp
