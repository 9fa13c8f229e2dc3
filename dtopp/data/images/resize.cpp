#include "dtopp/data/images/resize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <immintrin.h>

#if defined(__x86_64__)
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

namespace {

constexpr int kRowsAtOnce = 32;  // rows per transposed block

double box(double x) { return x > -0.5 && x <= 0.5 ? 1.0 : 0.0; }

// Keys' kernel with a = -1/2.
double bicubic(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0.0;
}

int32_t to_fixed(double weight) {
  return static_cast<int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << kWeightBits));
}

// The weights of input pixels in each output pixel, along one axis.
class Taps {
 public:
  // Computes the weights of the outputs [begin, begin + count) when `in` pixels become `out`.
  Taps(int in, int out, ResizeFilter filter, int begin, int count)
      : filter_(filter), scale_(static_cast<double>(in) / out) {
    starts_.push_back(0);
    for (int i = begin; i < begin + count; ++i) add((i + 0.5) * scale_, in);
  }

  size_t size() const { return firsts_.size(); }
  // Output i is the sum of weights(i)[t] times input pixel first(i) + t.
  size_t first(size_t i) const { return static_cast<size_t>(firsts_[i]); }
  std::span<const int32_t> weights(size_t i) const {
    return std::span(weights_).subspan(starts_[i], starts_[i + 1] - starts_[i]);
  }
  // The range of input pixels that any output needs.
  size_t begin() const { return first(0); }
  size_t end() const { return first(size() - 1) + weights(size() - 1).size(); }

 private:
  void add(double centre, int in) {
    const double stretch = std::max(scale_, 1.0);
    const double support = (filter_ == ResizeFilter::kBox ? 0.5 : 2.0) * stretch;
    int first = std::max(static_cast<int>(centre - support + 0.5), 0);
    int end = std::min(static_cast<int>(centre + support + 0.5), in);
    const auto weight_at = [&](int x) {
      const double at = (x - centre + 0.5) * (1.0 / stretch);
      return filter_ == ResizeFilter::kBox ? box(at) : bicubic(at);
    };
    while (weight_at(first) == 0) ++first;
    while (weight_at(end - 1) == 0) --end;
    double sum = 0;
    exact_.clear();
    for (int x = first; x < end; ++x) sum += exact_.emplace_back(weight_at(x));
    for (const double weight : exact_) weights_.push_back(to_fixed(weight / sum));
    firsts_.push_back(first);
    starts_.push_back(weights_.size());
  }

  ResizeFilter filter_;
  double scale_;
  std::vector<int> firsts_;
  std::vector<size_t> starts_;  // beginning of each output's weights, then the end of the last one's
  std::vector<int32_t> weights_;
  std::vector<double> exact_;
};

// Resizes rows, 32 at a time. A block of rows is transposed first, so that one weight multiplies many
// adjacent numbers, as it does when columns are resized.
class RowResizer {
 public:
  RowResizer(const Picture& in, Picture& out, const Taps& taps)
      : in_(in),
        out_(out),
        taps_(taps),
        channels_(static_cast<size_t>(in.channels)),
        block_((taps.end() - taps.begin()) * channels_ * kRowsAtOnce),
        result_(out.row_bytes() * kRowsAtOnce) {}

  // Resizes input rows in_row + i to output rows out_row + i, for i < rows.
  void run(int in_row, int out_row, int rows) {
    for (int begin = 0; begin < rows; begin += kRowsAtOnce)
      run_block(in_row + begin, out_row + begin, std::min(kRowsAtOnce, rows - begin));
  }

 private:
  void run_block(int in_row, int out_row, int rows) {
    const size_t pixel = channels_ * kRowsAtOnce;
    transpose(in_.row(in_row) + taps_.begin() * channels_, in_.row_bytes(), static_cast<size_t>(rows),
              (taps_.end() - taps_.begin()) * channels_, block_.data(), kRowsAtOnce);
    for (size_t i = 0; i < taps_.size(); ++i)
      sum_weighted_rows(block_.data() + (taps_.first(i) - taps_.begin()) * pixel, pixel, taps_.weights(i),
                        result_.data() + i * pixel, pixel);
    transpose(result_.data(), kRowsAtOnce, out_.row_bytes(), static_cast<size_t>(rows), out_.row(out_row),
              out_.row_bytes());
  }

  const Picture& in_;
  Picture& out_;
  const Taps& taps_;
  size_t channels_;
  Pixels block_, result_;
};

}  // namespace

Picture resize(const Picture& picture, int height, int width, ResizeFilter filter, ResizeWindow window) {
  // If a side keeps its length, the box filter has one tap of weight 1 per pixel, which changes nothing.
  const auto filter_of = [&](int in, int out) { return in == out ? ResizeFilter::kBox : filter; };
  const Taps down(picture.height, height, filter_of(picture.height, height), window.top, window.rows);
  const Taps across(picture.width, width, filter_of(picture.width, width), window.left, window.columns);
  // Skip the rows that no output needs.
  const auto first = static_cast<int>(down.begin()), rows = static_cast<int>(down.end()) - first;
  Picture narrow(rows, window.columns, picture.channels);
  RowResizer(picture, narrow, across).run(first, 0, rows);
  Picture out(window.rows, window.columns, picture.channels);
  for (int y = 0; y < out.height; ++y) {
    const auto i = static_cast<size_t>(y);
    sum_weighted_rows(narrow.row(static_cast<int>(down.first(i)) - first), narrow.row_bytes(),
                      down.weights(i), out.row(y), out.row_bytes());
  }
  return out;
}

Picture crop_to_square(Picture picture, int size) {
  while (std::min(picture.height, picture.width) >= 2 * size) {
    const int height = picture.height / 2, width = picture.width / 2;
    picture = resize(picture, height, width, ResizeFilter::kBox, {0, height, 0, width});
  }
  if (picture.height == size && picture.width == size) return picture;
  const double scale = static_cast<double>(size) / std::min(picture.height, picture.width);
  const auto scaled = [&](int side) { return static_cast<int>(std::nearbyint(side * scale)); };
  const int height = scaled(picture.height), width = scaled(picture.width);
  return resize(picture, height, width, ResizeFilter::kBicubic,
                {(height - size) / 2, size, (width - size) / 2, size});
}

}  // namespace dtopp::data
