// Resizes and crops pictures as ADM does with Pillow (Dhariwal and Nichol 2021, center_crop_arr).
#pragma once

#include "dtopp/data/image_codec/picture.h"

namespace dtopp::data {

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
