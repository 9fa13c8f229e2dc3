// The loops of bfloat16_loops.h in 64-byte registers.
//
// Include this file inside a namespace, once per instruction set. Define DTOPP_AVX512 and DTOPP_AVX512_BF16
// if the compiler may use these instructions. `kScalar`, the loops for the remainder that fills no register,
// must be declared first. Without either macro the compiler splits the 64-byte registers into narrower ones.
// That is slow, but it lets the tests run this code on any machine.

using Number = c10::BFloat16;
typedef float Floats __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Numbers __attribute__((vector_size(64)));  // 32 bf16 numbers
typedef uint64_t Quads __attribute__((vector_size(64)));    // the same 64 bytes, of any element type
typedef uint64_t Piece __attribute__((vector_size(16)));    // 8 bf16 numbers
typedef uint16_t Half __attribute__((vector_size(32)));     // 16 bf16 numbers

template <typename Vector, typename Source>
[[gnu::always_inline]] inline Vector get(const Source* from) {
  Vector vector;
  __builtin_memcpy(&vector, from, sizeof(Vector));
  return vector;
}

template <typename Vector, typename Target>
[[gnu::always_inline]] inline void put(Target* to, const Vector& vector) {
  __builtin_memcpy(to, &vector, sizeof(Vector));
}

// Loads 16 bf16 numbers as floats.
[[gnu::always_inline]] inline Floats get_floats(const Number* from) {
#if defined(DTOPP_AVX512)
  const Words wide = (Words)_mm512_maskz_cvtepu16_epi32(0xFFFF, (__m256i)get<Half>(from));
#else
  const Words wide = __builtin_convertvector(get<Half>(from), Words);
#endif
  return (Floats)(wide << 16);
}

// Rounds to nearest even. A NaN stays a NaN. AVX512_BF16 treats numbers below 2^-126 as zero.
[[gnu::always_inline]] inline void put_rounded(Number* to, Floats low, Floats high) {
#if defined(DTOPP_AVX512_BF16)
  put(to, _mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
#else
  const auto rounded = [](Words bits) {
    const Words result = bits + 0x7FFFU + ((bits >> 16) & 1U);
    return (bits & 0x7FFFFFFFU) > 0x7F800000U ? Words{} + 0x7FC00000U : result;
  };
  const auto upper_halves = []<size_t... kLane>(Words a, Words b, std::index_sequence<kLane...>) {
    return __builtin_shufflevector((Numbers)a, (Numbers)b, (2 * kLane + 1)...);
  };
  put(to, upper_halves(rounded((Words)low), rounded((Words)high), std::make_index_sequence<32>{}));
#endif
}

// 1 / x within 2^-22: the AVX-512 instruction gives 14 bits, and one Newton step doubles them.
[[gnu::always_inline]] inline Floats reciprocal(Floats x) {
#if defined(DTOPP_AVX512)
  const Floats guess = (Floats)_mm512_maskz_rcp14_ps(0xFFFF, (__m512)x);
  return guess * (2.0F - x * guess);
#else
  return 1.0F / x;
#endif
}

// If a or b is not a number, these two return b.
[[gnu::always_inline]] inline Floats larger(Floats a, Floats b) {
#if defined(DTOPP_AVX512)
  return (Floats)_mm512_maskz_max_ps(0xFFFF, (__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}
[[gnu::always_inline]] inline Floats smaller(Floats a, Floats b) {
#if defined(DTOPP_AVX512)
  return (Floats)_mm512_maskz_min_ps(0xFFFF, (__m512)a, (__m512)b);
#else
  return a < b ? a : b;
#endif
}

// 2^x for finite x < 128. The relative error is 3e-6, far below the rounding of results to 8 bits. Results
// below 2^-126 may become 2^-126.
[[gnu::always_inline]] inline Floats power_of_two(Floats x) {
#if defined(DTOPP_AVX512)
  const Floats n = (Floats)_mm512_maskz_roundscale_ps(0xFFFF, (__m512)x, _MM_FROUND_TO_NEAREST_INT);
#else
  x = larger(Floats{} - 126, x);
  const Floats shifted = x + 12582912.0F, n = shifted - 12582912.0F;
#endif
  const Floats f = x - n;
  Floats p = f * 9.570101067e-3F + 5.591786025e-2F;
  p = p * f + 2.402474485e-1F;
  p = p * f + 6.931218147e-1F;
  p = p * f + 9.999992614e-1F;
#if defined(DTOPP_AVX512)
  return (Floats)_mm512_maskz_scalef_ps(0xFFFF, (__m512)p, (__m512)n);
#else
  return p * (Floats)(((Words)shifted + 127U) << 23);
#endif
}

// exp(x) for x between -88 and 88, and exp(-88) or exp(88) beyond.
[[gnu::always_inline]] inline Floats exponential(Floats x) {
  return power_of_two(kLog2E * smaller(Floats{} + 88, larger(Floats{} - 88, x)));
}

[[gnu::always_inline]] inline Floats sigmoid_of(Floats x) { return reciprocal(1.0F + exponential(-x)); }

[[gnu::always_inline]] inline float sum_of(Floats x) {
  x += __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  x += __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  return (x[0] + x[1]) + (x[2] + x[3]);
}

[[gnu::always_inline]] inline float largest_of(Floats x) {
  x = larger(x, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  x = larger(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
  return std::max(std::max(x[0], x[1]), std::max(x[2], x[3]));
}

#include "dtopp/ops/core/bfloat16_registers_packing.h"
#include "dtopp/ops/core/bfloat16_registers_tiles.h"

#if defined(DTOPP_AVX512_BF16)
constexpr char kInstructions[] = "AVX512_BF16";
#elif defined(DTOPP_AVX512)
constexpr char kInstructions[] = "AVX-512";
#else
constexpr char kInstructions[] = "the compiler's";
#endif

constexpr Bfloat16Loops kLoops{
    kInstructions,         convert, convert_scaled,   pack_left_columns, pack_right_rows,
    pack_right_transposed, swiglu,  swiglu_gradients, add_rows,          softmax,
    softmax_gradients};
