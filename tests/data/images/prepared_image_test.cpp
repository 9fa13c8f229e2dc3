#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "dtopp/data/images/prepare_images.h"

namespace dtopp::data {
namespace {

std::vector<uint8_t> random_levels(size_t count) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<uint8_t> levels(count);
  for (uint8_t& level : levels) level = static_cast<uint8_t>(random());
  return levels;
}

TEST(ResizeKernels, weighted_sums_are_rounded_and_clipped_at_every_length) {
  constexpr int32_t kOne = 1 << kWeightBits;
  const std::vector<std::vector<int32_t>> all = {
      {kOne},
      {kOne / 2, kOne / 2},
      {-kOne / 3, kOne + kOne / 5, kOne / 7},
      {-300'001, 500'007, 1'600'003, 1'600'003, 500'007, -300'001, 12'345}};
  constexpr size_t kStride = 131;
  const auto rows = random_levels(7 * kStride);
  for (const auto& weights : all) {
    for (size_t count = 0; count <= kStride; ++count) {
      std::vector<uint8_t> out(count + 1, 99);
      sum_weighted_rows(rows.data(), kStride, weights, out.data(), count);
      for (size_t i = 0; i < count; ++i) {
        double sum = 0;
        for (size_t t = 0; t < weights.size(); ++t) sum += 1.0 * weights[t] / kOne * rows[t * kStride + i];
        ASSERT_EQ(out[i], std::clamp(std::floor(sum + 0.5), 0.0, 255.0)) << count << " " << i;
      }
      ASSERT_EQ(out[count], 99) << "beyond the end";
    }
  }
}

TEST(ResizeKernels, transposes_every_size) {
  constexpr size_t kStride = 50, kOutStride = 60;
  const auto in = random_levels(kStride * kStride);
  for (size_t rows = 1; rows < kStride; ++rows) {
    for (size_t columns = 1; columns < kStride; ++columns) {
      std::vector<uint8_t> out(kStride * kOutStride, 7);
      transpose(in.data(), kStride, rows, columns, out.data(), kOutStride);
      for (size_t x = 0; x < kStride; ++x) {
        for (size_t y = 0; y < kOutStride; ++y)
          ASSERT_EQ(out[x * kOutStride + y], x < columns && y < rows ? in[y * kStride + x] : 7);
      }
    }
  }
}

}  // namespace

}  // namespace dtopp::data
