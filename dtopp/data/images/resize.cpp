#include "dtopp/data/images/resize.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
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
    for (int x = taps.first; x < end; ++x) {
      const double at = (x - centre + 0.5) * (1.0 / filter_scale);
      weights.push_back(filter == ResizeFilter::kBox ? box(at) : bicubic(at));
      sum += weights.back();
    }
    for (const double weight : weights) taps.weights.push_back(to_fixed(sum != 0 ? weight / sum : weight));
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
  constexpr ptrdiff_t kBlock = 32;
  for (ptrdiff_t begin = 0; begin < count; begin += kBlock) {
    int32_t sums[kBlock];
    const ptrdiff_t size = std::min(kBlock, count - begin);
    for (int32_t& sum : sums) sum = 1 << (kPrecision - 1);
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
    for (int y = 0; y < rows; ++y) {
      const uint8_t* row = in_.row(in_row + y);
      for (size_t i = static_cast<size_t>(first_) * channels; i < last * channels; ++i)
        block_[i * kRowsAtOnce + static_cast<size_t>(y)] = row[i];
    }
    uint8_t* out = result_.data();
    for (const Taps& taps : taps_) {
      for (size_t c = 0; c < channels; ++c, out += kRowsAtOnce)
        add_weighted(block_.data() + (static_cast<size_t>(taps.first) * channels + c) * kRowsAtOnce,
                     static_cast<ptrdiff_t>(channels * kRowsAtOnce), taps.weights.data(),
                     static_cast<int>(taps.weights.size()), out, kRowsAtOnce);
    }
    for (int y = 0; y < rows; ++y) {
      uint8_t* row = out_.row(out_row + y);
      for (size_t i = 0; i < out_.row_bytes(); ++i)
        row[i] = result_[i * kRowsAtOnce + static_cast<size_t>(y)];
    }
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
