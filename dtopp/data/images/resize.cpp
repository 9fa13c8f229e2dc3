#include "dtopp/data/images/resize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace dtopp {
namespace {

constexpr int kPrecision = 22;   // fractional bits of a weight
constexpr int kRowsAtOnce = 32;  // of a block that lies column by column

// What the pixels [first, first + weights.size()) of a row add to one pixel of the result.
struct Taps {
  int first = 0;
  std::vector<int32_t> weights;
};

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
  return static_cast<int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << kPrecision));
}

// The taps of the results [begin, begin + count) when `in` pixels become `out`.
std::vector<Taps> make_taps(int in, int out, ResizeFilter filter, int begin, int count) {
  const double scale = static_cast<double>(in) / out, filter_scale = std::max(scale, 1.0);
  const double support = (filter == ResizeFilter::kBox ? 0.5 : 2.0) * filter_scale;
  std::vector<Taps> all(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const double centre = (begin + i + 0.5) * scale;
    Taps& taps = all[static_cast<size_t>(i)];
    taps.first = std::max(static_cast<int>(centre - support + 0.5), 0);
    const int end = std::min(static_cast<int>(centre + support + 0.5), in);
    std::vector<double> weights;
    double sum = 0;
    const int begin_at = taps.first;
    for (int x = begin_at; x < end; ++x) {
      const double at = (x - centre + 0.5) * (1.0 / filter_scale);
      const double weight = filter == ResizeFilter::kBox ? box(at) : bicubic(at);
      if (weight == 0 && weights.empty()) {
        ++taps.first;
        continue;
      }
      weights.push_back(weight);
      sum += weight;
    }
    while (weights.back() == 0) weights.pop_back();
    for (const double weight : weights) taps.weights.push_back(to_fixed(weight / sum));
  }
  return all;
}

// out[i] = the weighted sum of row[i] over the rows, each `stride` bytes after the one before.
// Compiled twice: for any x86-64, and with vectors of eight products.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
__attribute__((target_clones("default", "avx2")))
#endif
void add_weighted(const uint8_t* rows, ptrdiff_t stride, const int32_t* weights, int taps, uint8_t* out,
                  ptrdiff_t count) {
  constexpr int32_t kHalf = 1 << (kPrecision - 1);
  if (taps == 2 && weights[0] == kHalf && weights[1] == kHalf) {
    for (ptrdiff_t i = 0; i < count; ++i)
      out[i] = static_cast<uint8_t>((rows[i] + rows[stride + i] + 1) >> 1);
    return;
  }
  constexpr ptrdiff_t kBlock = 32;
  for (ptrdiff_t begin = 0; begin < count; begin += kBlock) {
    int32_t sums[kBlock];
    const ptrdiff_t size = std::min(kBlock, count - begin);
    for (int32_t& sum : sums) sum = kHalf;
    if (size == kBlock) {
      for (int tap = 0; tap < taps; ++tap) {
        const uint8_t* row = rows + tap * stride + begin;
        for (ptrdiff_t i = 0; i < kBlock; ++i) sums[i] += weights[tap] * row[i];
      }
      for (ptrdiff_t i = 0; i < kBlock; ++i)
        out[begin + i] = static_cast<uint8_t>(std::clamp(sums[i] >> kPrecision, 0, 255));
    } else {
      for (int tap = 0; tap < taps; ++tap) {
        const uint8_t* row = rows + tap * stride + begin;
        for (ptrdiff_t i = 0; i < size; ++i) sums[i] += weights[tap] * row[i];
      }
      for (ptrdiff_t i = 0; i < size; ++i)
        out[begin + i] = static_cast<uint8_t>(std::clamp(sums[i] >> kPrecision, 0, 255));
    }
  }
}

// Swaps what `mask` selects in `a`, `shift` bits up, with what it selects in `b`.
void swap_bits(uint64_t& a, uint64_t& b, int shift, uint64_t mask) {
  const uint64_t difference = ((a >> shift) ^ b) & mask;
  b ^= difference;
  a ^= difference << shift;
}

// Eight bytes of each of eight rows become eight rows of eight bytes: by halves, quarters, eighths.
void transpose_8x8(const uint8_t* in, size_t in_stride, uint8_t* out, size_t out_stride) {
  std::array<uint64_t, 8> rows{};
  for (size_t i = 0; i < 8; ++i) std::memcpy(&rows[i], in + i * in_stride, 8);
  for (size_t i = 0; i < 4; ++i) swap_bits(rows[i], rows[i + 4], 32, 0x00000000ffffffff);
  for (const size_t i : {0, 1, 4, 5}) swap_bits(rows[i], rows[i + 2], 16, 0x0000ffff0000ffff);
  for (const size_t i : {0, 2, 4, 6}) swap_bits(rows[i], rows[i + 1], 8, 0x00ff00ff00ff00ff);
  for (size_t i = 0; i < 8; ++i) std::memcpy(out + i * out_stride, &rows[i], 8);
}

// out[x * out_stride + y] = in[y * in_stride + x].
void transpose(const uint8_t* in, size_t in_stride, size_t rows, size_t columns, uint8_t* out,
               size_t out_stride) {
  const size_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
  for (size_t y = 0; y < whole_rows; y += 8) {
    for (size_t x = 0; x < whole_columns; x += 8)
      transpose_8x8(in + y * in_stride + x, in_stride, out + x * out_stride + y, out_stride);
  }
  for (size_t y = 0; y < rows; ++y) {
    for (size_t x = y < whole_rows ? whole_columns : 0; x < columns; ++x)
      out[x * out_stride + y] = in[y * in_stride + x];
  }
}

// Blocks of rows are turned so that their columns lie in a row each: then one weight serves many numbers that
// lie side by side, as it does when columns are resized.
class RowResizer {
 public:
  RowResizer(const Picture& in, Picture& out, std::vector<Taps> taps)
      : in_(in),
        out_(out),
        taps_(std::move(taps)),
        first_(taps_.front().first),
        block_(in.row_bytes() * kRowsAtOnce),
        result_(out.row_bytes() * kRowsAtOnce) {}

  // Row in_row + i becomes row out_row + i.
  void run(int in_row, int out_row, int rows) {
    for (int begin = 0; begin < rows; begin += kRowsAtOnce)
      run_block(in_row + begin, out_row + begin, std::min(kRowsAtOnce, rows - begin));
  }

 private:
  void run_block(int in_row, int out_row, int rows) {
    const auto channels = static_cast<size_t>(in_.channels);
    const auto last = static_cast<size_t>(taps_.back().first) + taps_.back().weights.size();
    const size_t begin = static_cast<size_t>(first_) * channels;
    transpose(in_.row(in_row) + begin, in_.row_bytes(), static_cast<size_t>(rows), last * channels - begin,
              block_.data() + begin * kRowsAtOnce, kRowsAtOnce);
    uint8_t* out = result_.data();
    for (const Taps& taps : taps_) {
      for (size_t c = 0; c < channels; ++c, out += kRowsAtOnce)
        add_weighted(block_.data() + (static_cast<size_t>(taps.first) * channels + c) * kRowsAtOnce,
                     static_cast<ptrdiff_t>(channels * kRowsAtOnce), taps.weights.data(),
                     static_cast<int>(taps.weights.size()), out, kRowsAtOnce);
    }
    transpose(result_.data(), kRowsAtOnce, out_.row_bytes(), static_cast<size_t>(rows), out_.row(out_row),
              out_.row_bytes());
  }

  const Picture& in_;
  Picture& out_;
  std::vector<Taps> taps_;
  int first_;
  std::vector<uint8_t> block_, result_;
};

Picture resize_columns(const Picture& in, const std::vector<Taps>& taps) {
  Picture out(static_cast<int>(taps.size()), in.width, in.channels);
  for (int y = 0; y < out.height; ++y) {
    const Taps& tap = taps[static_cast<size_t>(y)];
    add_weighted(in.row(tap.first), static_cast<ptrdiff_t>(in.row_bytes()), tap.weights.data(),
                 static_cast<int>(tap.weights.size()), out.row(y), static_cast<ptrdiff_t>(out.row_bytes()));
  }
  return out;
}

}  // namespace

Picture resize(const Picture& picture, int height, int width, ResizeFilter filter, ResizeWindow window) {
  // A side that keeps its length has one tap of weight one a pixel, which changes nothing.
  std::vector<Taps> columns =
      make_taps(picture.height, height, height == picture.height ? ResizeFilter::kBox : filter, window.top,
                window.rows);
  // Rows that no result needs are left out.
  const int first = columns.front().first;
  const int last = columns.back().first + static_cast<int>(columns.back().weights.size());
  for (Taps& taps : columns) taps.first -= first;
  Picture narrow(last - first, window.columns, picture.channels);
  RowResizer(picture, narrow,
             make_taps(picture.width, width, width == picture.width ? ResizeFilter::kBox : filter,
                       window.left, window.columns))
      .run(first, 0, last - first);
  return resize_columns(narrow, columns);
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

}  // namespace dtopp
