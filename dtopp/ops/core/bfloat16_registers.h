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

// Interleaves the numbers of a and b: within every 16 bytes it takes the lower half of both, or the upper
// half if kUpper.
template <typename Vector, bool kUpper, size_t... kLane>
[[gnu::always_inline]] inline Quads interleave(Quads a, Quads b, std::index_sequence<kLane...>) {
  constexpr size_t kLanes = sizeof...(kLane), kPart = kLanes / 4, kFirst = kUpper ? kPart / 2 : 0;
  return (Quads)__builtin_shufflevector(
      (Vector)a, (Vector)b, (kLane / kPart * kPart + kFirst + kLane % kPart / 2 + kLane % 2 * kLanes)...);
}

template <typename Vector>
[[gnu::always_inline]] inline Quads lower(Quads a, Quads b) {
  return interleave<Vector, false>(a, b, std::make_index_sequence<64 / sizeof(Vector{}[0])>{});
}

template <typename Vector>
[[gnu::always_inline]] inline Quads upper(Quads a, Quads b) {
  return interleave<Vector, true>(a, b, std::make_index_sequence<64 / sizeof(Vector{}[0])>{});
}

// Loads four times 8 numbers, each into its final quarter of the register. Nothing crosses the 16-byte lanes
// later.
[[gnu::always_inline]] inline Quads gather(const Number* a, const Number* b, const Number* c,
                                           const Number* d) {
#if defined(DTOPP_AVX512)
  __m512i all = _mm512_castsi128_si512((__m128i)get<Piece>(a));
  all = _mm512_inserti32x4(all, (__m128i)get<Piece>(b), 1);
  all = _mm512_inserti32x4(all, (__m128i)get<Piece>(c), 2);
  return (Quads)_mm512_inserti32x4(all, (__m128i)get<Piece>(d), 3);
#else
  const Piece p = get<Piece>(a), q = get<Piece>(b), r = get<Piece>(c), s = get<Piece>(d);
  return Quads{p[0], p[1], q[0], q[1], r[0], r[1], s[0], s[1]};
#endif
}

void convert(const float* from, Number* to, int64_t count) {
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) put_rounded(to + i, get<Floats>(from + i), get<Floats>(from + i + 16));
  kScalar.convert(from + i, to + i, count - i);
}

void convert_scaled(const Number* from, float scale, Number* to, int64_t count) {
  int64_t i = 0;
  for (; i + 32 <= count; i += 32)
    put_rounded(to + i, scale * get_floats(from + i), scale * get_floats(from + i + 16));
  kScalar.convert_scaled(from + i, scale, to + i, count - i);
}

// Packs 32 k x 8 m. Register i holds 16 bytes of the columns i, i + 8, i + 16 and i + 24. Three rounds of
// interleaving within 16 bytes transpose the block, and every result is a whole row. kWhole: all 32 columns
// exist.
template <bool kWhole>
[[gnu::always_inline]] inline void pack_8_rows(const Number* const* columns, int64_t present, int64_t m,
                                               Number* to, int64_t stride) {
  static const Number kZeros[8] = {};
  const auto column = [&](int64_t k) { return kWhole || k < present ? columns[k] + m : kZeros; };
  Quads r[8], t[8];
#pragma GCC unroll 8
  for (int64_t i = 0; i < 8; ++i) r[i] = gather(column(i), column(i + 8), column(i + 16), column(i + 24));
#pragma GCC unroll 4
  for (int64_t i = 0; i < 4; ++i) {
    t[2 * i] = lower<Numbers>(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = upper<Numbers>(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int64_t i = 0; i < 2; ++i) {
    r[4 * i] = lower<Words>(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = upper<Words>(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = lower<Words>(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = upper<Words>(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int64_t i = 0; i < 4; ++i) {
    put(to + 2 * i * stride, lower<Quads>(r[i], r[i + 4]));
    put(to + (2 * i + 1) * stride, upper<Quads>(r[i], r[i + 4]));
  }
}

void pack_left_columns(const Number* const* columns, int64_t present, int64_t M, Number* to, int64_t stride) {
  int64_t m = 0;
  if (present == kPackedDepth) {
    for (; m + 8 <= M; m += 8) pack_8_rows<true>(columns, present, m, to + m * stride, stride);
  } else {
    for (; m + 8 <= M; m += 8) pack_8_rows<false>(columns, present, m, to + m * stride, stride);
  }
  if (m == M) return;
  const Number* rest[kPackedDepth];
  for (int64_t k = 0; k < present; ++k) rest[k] = columns[k] + m;
  kScalar.pack_left_columns(rest, present, M - m, to + m * stride, stride);
}

void pack_right_rows(const Number* even, const Number* odd, int64_t columns, Number* to, int64_t step) {
  for (; columns >= kPanelColumns; columns -= kPanelColumns, to += step) {
#pragma GCC unroll 2
    for (int64_t n = 0; n < kPanelColumns; n += 32) {
      const Quads a = get<Quads>(even + n), b = odd == nullptr ? Quads{} : get<Quads>(odd + n);
      const Quads low = lower<Numbers>(a, b), high = upper<Numbers>(a, b);
      put(to + 2 * n, __builtin_shufflevector(low, high, 0, 1, 8, 9, 2, 3, 10, 11));
      put(to + 2 * n + 32, __builtin_shufflevector(low, high, 4, 5, 12, 13, 6, 7, 14, 15));
    }
    even += kPanelColumns;
    if (odd != nullptr) odd += kPanelColumns;
  }
  kScalar.pack_right_rows(even, odd, columns, to, step);
}

// Packs 16 n x 8 k. As in pack_left_columns, but numbers stay in pairs of k, so two rounds suffice.
void pack_right_transposed(const Number* rows, int64_t stride, int64_t columns, int64_t K, Number* to) {
  if (columns < 16) return kScalar.pack_right_transposed(rows, stride, columns, K, to);
  const int64_t whole = K / kPackedDepth * kPackedDepth;
  for (int64_t k = 0; k < whole; k += 8) {
    const auto row = [&](int64_t n) { return rows + n * stride + k; };
    Quads r[4];
#pragma GCC unroll 4
    for (int64_t i = 0; i < 4; ++i) r[i] = gather(row(i), row(i + 4), row(i + 8), row(i + 12));
    const Quads a = lower<Words>(r[0], r[1]), b = upper<Words>(r[0], r[1]);
    const Quads c = lower<Words>(r[2], r[3]), d = upper<Words>(r[2], r[3]);
    Number* pair = to + k * kPanelColumns;
    put(pair, lower<Quads>(a, c));
    put(pair + 2 * kPanelColumns, upper<Quads>(a, c));
    put(pair + 4 * kPanelColumns, lower<Quads>(b, d));
    put(pair + 6 * kPanelColumns, upper<Quads>(b, d));
  }
  if (whole == K) return;
  kScalar.pack_right_transposed(rows + whole, stride, columns, K - whole, to + whole * kPanelColumns);
}

void swiglu(const float* tile, int64_t rows, int64_t columns, Number* act, int64_t act_stride, Number* saved,
            int64_t saved_stride, int64_t ffn) {
  if (columns < 32) return kScalar.swiglu(tile, rows, columns, act, act_stride, saved, saved_stride, ffn);
  for (int64_t n = 0; n < rows; ++n, tile += kPanelColumns, act += act_stride) {
    const Floats gate[2] = {get<Floats>(tile), get<Floats>(tile + 16)};
    const Floats up[2] = {get<Floats>(tile + 32), get<Floats>(tile + 48)};
    if (saved != nullptr) {
      put_rounded(saved, gate[0], gate[1]);
      put_rounded(saved + ffn, up[0], up[1]);
      saved += saved_stride;
    }
    put_rounded(act, gate[0] * sigmoid_of(gate[0]) * up[0], gate[1] * sigmoid_of(gate[1]) * up[1]);
  }
}

void swiglu_gradients(const float* tile, int64_t rows, int64_t columns, const SwigluGradients& to) {
  if (columns < kPanelColumns) return kScalar.swiglu_gradients(tile, rows, columns, to);
  for (int64_t n = 0; n < rows; ++n, tile += kPanelColumns) {
    const Number *gates = to.pre + n * to.pre_stride, *ups = gates + to.ffn;
    Number *d_gates = to.d_pre + n * to.d_pre_stride, *d_ups = d_gates + to.ffn;
    Number* scaled = to.scaled + n * to.scaled_stride;
    const Floats factor = Floats{} + to.gates[to.tokens[n] * to.gate_stride];
    Floats sum = {};
    for (int64_t f = 0; f < kPanelColumns; f += 32) {
      Floats act[2], d_gate[2], d_up[2];
#pragma GCC unroll 2
      for (int64_t i = 0; i < 2; ++i) {
        const int64_t at = f + 16 * i;
        const Floats gate = get_floats(gates + at), up = get_floats(ups + at), da = get<Floats>(tile + at);
        const Floats sig = sigmoid_of(gate), silu = gate * sig, scaled_da = factor * da;
        sum += da * (silu * up);
        act[i] = factor * (silu * up);
        d_gate[i] = scaled_da * up * (sig + silu * (1.0F - sig));
        d_up[i] = scaled_da * silu;
      }
      put_rounded(scaled + f, act[0], act[1]);
      put_rounded(d_gates + f, d_gate[0], d_gate[1]);
      put_rounded(d_ups + f, d_up[0], d_up[1]);
    }
    to.grad_gates[n] += sum_of(sum);
  }
}

// The rows of a block's tokens are scattered in memory, so the loop prefetches kAhead rows.
void add_rows(const float* tile, int64_t rows, int64_t columns, const RowSums& to) {
  constexpr int64_t kAhead = 8;
  if (columns < kPanelColumns) return kScalar.add_rows(tile, rows, columns, to);
  for (int64_t n = 0; n < rows; ++n, tile += kPanelColumns) {
    if (n + kAhead < rows) {
      const float* later = to.y + to.tokens[n + kAhead] * to.stride;
#pragma GCC unroll 4
      for (int64_t i = 0; i < kPanelColumns; i += 16) __builtin_prefetch(later + i, 1);
    }
    const Floats gate = Floats{} + (to.gates == nullptr ? 1.0F : to.gates[to.tokens[n] * to.gate_stride]);
    float* sum = to.y + to.tokens[n] * to.stride;
#pragma GCC unroll 4
    for (int64_t i = 0; i < kPanelColumns; i += 16)
      put(sum + i, gate * get<Floats>(tile + i) + get<Floats>(sum + i));
  }
}

float softmax(float* scores, int64_t count, int64_t padded, float scale, float& highest, Number* weights) {
  constexpr float kMasked = -1e38F;  // its weight is 0
  const int64_t whole = (count + 31) / 32 * 32;
  for (int64_t i = count; i < whole; ++i) scores[i] = kMasked;
  Floats most = Floats{} + highest;
  for (int64_t i = 0; i < whole; i += 16) most = larger(get<Floats>(scores + i), most);
  highest = largest_of(most);
  Floats sum = {};
  for (int64_t i = 0; i < whole; i += 32) {
    const Floats low = power_of_two(scale * (get<Floats>(scores + i) - highest));
    const Floats high = power_of_two(scale * (get<Floats>(scores + i + 16) - highest));
    put_rounded(weights + i, low, high);
    sum += low + high;
  }
  for (int64_t i = count; i < padded; ++i) weights[i] = Number(0);
  return sum_of(sum);
}

void softmax_gradients(const float* tile, const float* d_tile, int64_t rows,
                       const SoftmaxGradients<c10::BFloat16>& to) {
  constexpr int64_t kVectors = kPanelColumns / 16;
  Floats logsumexp[kVectors], means[kVectors];
  for (int64_t v = 0; v < kVectors; ++v) {
    logsumexp[v] = get<Floats>(to.logsumexp + 16 * v);
    means[v] = get<Floats>(to.means + 16 * v);
  }
  const float scale = to.scale * kLog2E;
  for (int64_t j = 0; j < rows; ++j, tile += kPanelColumns, d_tile += kPanelColumns) {
    Number *weights = to.weights + j * to.stride, *d_scores = to.d_scores + j * to.stride;
    Floats w[kVectors], d[kVectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) {
      w[v] = power_of_two(scale * get<Floats>(tile + 16 * v) - logsumexp[v]);
      d[v] = to.scale * w[v] * (get<Floats>(d_tile + 16 * v) - means[v]);
    }
#pragma GCC unroll 2
    for (int64_t v = 0; v < kVectors; v += 2) {
      put_rounded(weights + 16 * v, w[v], w[v + 1]);
      put_rounded(d_scores + 16 * v, d[v], d[v + 1]);
    }
    for (int64_t i = 0; to.diagonal && i < j; ++i) weights[i] = d_scores[i] = Number(0);
  }
}

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
