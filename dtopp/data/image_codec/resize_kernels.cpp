#include "dtopp/data/image_codec/resize_kernels.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dtopp::data {
namespace {

constexpr int32_t kHalf = 1 << (kWeightBits - 1);

void sum_rows(const uint8_t* rows, size_t stride, std::span<const int32_t> weights, uint8_t* out,
              size_t count) {
  std::array<int32_t, 32> sums;
  for (size_t begin = 0; begin < count; begin += sums.size()) {
    const size_t size = std::min(sums.size(), count - begin);
    const uint8_t* row = rows + begin;
    sums.fill(kHalf);
    for (const int32_t weight : weights) {
      for (size_t i = 0; i < size; ++i) sums[i] += weight * row[i];
      row += stride;
    }
    for (size_t i = 0; i < size; ++i)
      out[begin + i] = static_cast<uint8_t>(std::clamp(sums[i] >> kWeightBits, 0, 255));
  }
}

void average_rows(const uint8_t* rows, size_t stride, uint8_t* out, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>((rows[i] + rows[stride + i] + 1) >> 1);
}

#if defined(__x86_64__)
// Keeps 32 sums in registers. The last 32 outputs may overlap the 32 before. Precondition: `count` is 32 or
// more.
[[gnu::target("avx2")]] void sum_rows_avx2(const uint8_t* rows, size_t stride,
                                           std::span<const int32_t> weights, uint8_t* out, size_t count) {
  for (size_t next = 0; next < count; next += 32) {
    const size_t begin = std::min(next, count - 32);
    const uint8_t* row = rows + begin;
    __m256i sums[4];
    for (__m256i& sum : sums) sum = _mm256_set1_epi32(kHalf);
    for (const int32_t number : weights) {
      const __m256i weight = _mm256_set1_epi32(number);
      for (int i = 0; i < 4; ++i) {
        const __m256i levels = _mm256_cvtepu8_epi32(_mm_loadu_si64(row + 8 * i));
        sums[i] = _mm256_add_epi32(sums[i], _mm256_mullo_epi32(weight, levels));
      }
      row += stride;
    }
    for (__m256i& sum : sums) sum = _mm256_srai_epi32(sum, kWeightBits);
    // Packing clips to eight bits and interleaves groups of four numbers. The permutation restores the order.
    const __m256i packed =
        _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]), _mm256_packs_epi32(sums[2], sums[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + begin), _mm256_permutevar8x32_epi32(packed, order));
  }
}
#endif

using Bytes16 [[gnu::vector_size(16)]] = uint8_t;

// Interleave the bytes of the first (mix_low) or second (mix_high) halves of a and b.
Bytes16 mix_low(Bytes16 a, Bytes16 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
Bytes16 mix_high(Bytes16 a, Bytes16 b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

// Transposes by four perfect shuffles of the 256 bytes.
void transpose_16x16(const uint8_t* in, size_t in_stride, uint8_t* out, size_t out_stride) {
  std::array<Bytes16, 16> rows, mixed;
  for (size_t i = 0; i < 16; ++i) std::memcpy(&rows[i], in + i * in_stride, 16);
  for (int round = 0; round < 4; ++round) {
    for (size_t i = 0; i < 8; ++i) {
      mixed[2 * i] = mix_low(rows[i], rows[i + 8]);
      mixed[2 * i + 1] = mix_high(rows[i], rows[i + 8]);
    }
    rows = mixed;
  }
  for (size_t i = 0; i < 16; ++i) std::memcpy(out + i * out_stride, &rows[i], 16);
}

}  // namespace

void sum_weighted_rows(const uint8_t* rows, size_t stride, std::span<const int32_t> weights, uint8_t* out,
                       size_t count) {
  if (weights.size() == 2 && weights[0] == kHalf && weights[1] == kHalf)
    return average_rows(rows, stride, out, count);
#if defined(__x86_64__)
  if (count >= 32 && __builtin_cpu_supports("avx2")) return sum_rows_avx2(rows, stride, weights, out, count);
#endif
  sum_rows(rows, stride, weights, out, count);
}

void transpose(const uint8_t* in, size_t in_stride, size_t rows, size_t columns, uint8_t* out,
               size_t out_stride) {
  if (rows < 16 || columns < 16) {
    for (size_t y = 0; y < rows; ++y) {
      for (size_t x = 0; x < columns; ++x) out[x * out_stride + y] = in[y * in_stride + x];
    }
    return;
  }
  // The last block in each direction begins 16 before the end and overlaps the block before it.
  for (size_t next_y = 0; next_y < rows; next_y += 16) {
    const size_t y = std::min(next_y, rows - 16);
    for (size_t next_x = 0; next_x < columns; next_x += 16) {
      const size_t x = std::min(next_x, columns - 16);
      transpose_16x16(in + y * in_stride + x, in_stride, out + x * out_stride + y, out_stride);
    }
  }
}

}  // namespace dtopp::data
