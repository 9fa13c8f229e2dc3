// Loads and stores of bf16 that compilers vectorize. c10::BFloat16's own rounding contains a branch, which
// prevents that.
#pragma once

#include <bit>
#include <cstdint>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

[[gnu::always_inline]] inline float load(float value) { return value; }
[[gnu::always_inline]] inline double load(double value) { return value; }
[[gnu::always_inline]] inline float load(c10::BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.x) << 16);
}

[[gnu::always_inline]] inline void store(float* to, float value) { *to = value; }
[[gnu::always_inline]] inline void store(double* to, double value) { *to = value; }
// Rounds to nearest even. A NaN stays a NaN.
[[gnu::always_inline]] inline void store(c10::BFloat16* to, float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  to->x = static_cast<uint16_t>(is_nan ? 0x7FC0U : rounded);
}

}  // namespace dtopp::ops
