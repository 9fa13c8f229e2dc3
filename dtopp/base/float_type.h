// Floating-point numbers as they lie in files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace dtopp {

enum class FloatType { kF32, kF16, kBF16 };

// As safetensors names it.
std::string name_of(FloatType type);
std::optional<FloatType> float_type_of(std::string_view name);
uint64_t size_of(FloatType type);

// All of them as float, exactly. `bytes` are little-endian, out.size() numbers.
void widen(FloatType type, std::span<const std::byte> bytes, std::span<float> out);

// Whether no number is infinite or NaN.
bool all_finite(FloatType type, std::span<const std::byte> bytes);

}  // namespace dtopp
