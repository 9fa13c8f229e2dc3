// Runs loops compiled for the widest vector instructions of the machine, chosen at run time, and provides a
// vectorizable exponential.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace dtopp::ops {

enum class Simd { kBaseline, kAvx2, kAvx512 };

// Returns the instruction set that loops are compiled for: the machine's widest, or a narrower one if
// ATEN_CPU_CAPABILITY (default, avx2) asks for it. libtorch's own kernels follow the same variable.
Simd widest_simd();

// Returns true if this set is AVX-512 and the machine has AVX512_BF16, which multiplies bf16.
bool has_avx512_bf16();

#if defined(__x86_64__)
template <typename Body>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"), gnu::flatten]] void run_avx512(
    const Body& body) {
  body();
}

template <typename Body>
[[gnu::target("avx2,fma"), gnu::flatten]] void run_avx2(const Body& body) {
  body();
}
#endif

// Runs `body` with everything inlinable in it compiled for AVX-512, AVX2 or the baseline. The three differ by
// rounding only. Results never differ between runs on one machine.
template <typename Body>
void run_widest(const Body& body) {
#if defined(__x86_64__)
  switch (widest_simd()) {
    case Simd::kAvx512:
      return run_avx512(body);
    case Simd::kAvx2:
      return run_avx2(body);
    case Simd::kBaseline:
      break;
  }
#endif
  body();
}

// exp(x) within 2 ulp for x in [-87.3, 88]. Smaller x give between 0 and 1.2e-38, larger x give exp(88), and
// NaN gives NaN.
//
// The code avoids float comparisons: they may raise floating-point exceptions, and GCC compiles them to
// branches instead of vector instructions.
[[gnu::always_inline]] inline float fast_exp(float x) {
  constexpr auto kLowest = std::bit_cast<uint32_t>(-88.0F);
  constexpr auto kHighest = std::bit_cast<int32_t>(88.0F), kInfinity = std::bit_cast<int32_t>(HUGE_VALF);
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const auto bits = std::bit_cast<int32_t>(x);
  // The bits of positive floats, read as integers, have the order of the floats. As unsigned integers they
  // are below those of negative floats.
  const auto not_above = static_cast<uint32_t>(bits < kHighest ? bits : kHighest);
  const auto clamped = std::bit_cast<float>(not_above < kLowest ? not_above : kLowest);
  const float shifted = clamped * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * 0.693359375F) - n * -2.12194440e-4F;  // ln 2 in two parts
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  // The shift keeps only the low 9 bits, which hold n + 127. n = -127 gives 0.
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) + 127U) << 23;
  const float result = p * std::bit_cast<float>(exponent);
  const int32_t nan = ((kInfinity - (bits & 0x7FFFFFFF)) >> 31) & 0x7FC00000;
  return std::bit_cast<float>(std::bit_cast<int32_t>(result) | nan);
}

[[gnu::always_inline]] inline double fast_exp(double x) { return std::exp(x); }

}  // namespace dtopp::ops
