// Resizes and crops pictures as ADM does with Pillow (Dhariwal and Nichol 2021, center_crop_arr).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dtopp/data/images/picture.h"

namespace dtopp::data {

// Computes the weighted sums and the transposes of resize() on rows of bytes.

inline constexpr int kWeightBits = 22;  // fractional bits of a weight

// Computes out[i] = the sum over t of weights[t] * rows[t * stride + i], for 0 <= i < count, rounded and
// clipped to eight bits. Precondition: the magnitudes of the weights sum to less than 2.
void sum_weighted_rows(const uint8_t* rows, size_t stride, std::span<const int32_t> weights, uint8_t* out,
                       size_t count);

// Computes out[x * out_stride + y] = in[y * in_stride + x] for y < rows, x < columns.
void transpose(const uint8_t* in, size_t in_stride, size_t rows, size_t columns, uint8_t* out,
               size_t out_stride);

enum class ResizeFilter { kBox, kBicubic };

// The part [top, top + rows) x [left, left + columns) of a resized picture.
struct ResizeWindow {
  int top = 0, rows = 0, left = 0, columns = 0;
};

// Resizes a picture to [height, width] and returns only the part `window` of the result.
//
// The result equals Pillow's Image.resize bit for bit, if Pillow resizes rows first, as it does up to
// Pillow 12. The filter is separable: rows first, then columns, with rounding to eight bits between them.
// Weights have 22 fractional bits.
Picture resize(const Picture& picture, int height, int width, ResizeFilter filter, ResizeWindow window);

// Returns the middle of the picture as size x size. The picture is halved by a box filter while its shorter
// side is at least 2 * size. A bicubic filter then scales the shorter side to `size`, and the longer one is
// cropped.
Picture crop_to_square(Picture picture, int size);

}  // namespace dtopp::data
