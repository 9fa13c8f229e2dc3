#include "dtopp/data/image_codec/resize.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dtopp/data/image_codec/resize_kernels.h"

namespace dtopp::data {
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
