// Converts the floating-point formats that tensor files use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace dtopp {

enum class FloatType { kF32, kF16, kBF16 };

// The dtype name in safetensors.
std::string name_of(FloatType type);
std::optional<FloatType> float_type_of(std::string_view name);
uint64_t size_of(FloatType type);

// Converts all numbers to float exactly. `bytes` holds out.size() little-endian numbers.
void widen(FloatType type, std::span<const std::byte> bytes, std::span<float> out);

// True if no number is infinite or NaN.
bool all_finite(FloatType type, std::span<const std::byte> bytes);

}  // namespace dtopp
