// A part of bfloat16_registers.h, which includes it: conversion, and packing of operands.

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
  for (; i + 32 <= count; i += 32) {
    put_rounded(to + i, scale * get_floats(from + i), scale * get_floats(from + i + 16));
  }
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
