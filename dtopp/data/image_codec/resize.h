// Pictures brought to one size, as ADM (Dhariwal and Nichol 2021, center_crop_arr) does with Pillow.
#pragma once

#include "dtopp/data/image_codec/picture.h"

namespace dtopp {

enum class ResizeFilter { kBox, kBicubic };

// Pillow's Image.resize, bit for bit (where it begins with the rows, as up to Pillow 12): separable, rows
// first, weights of 22 fractional bits, rounded to eight bits between the two. Of the result [height, width]
// only the part [top, top + rows) x [left, left + columns) is computed.
struct ResizeWindow {
  int top = 0, rows = 0, left = 0, columns = 0;
};
Picture resize(const Picture& picture, int height, int width, ResizeFilter filter, ResizeWindow window);

// The middle of the picture as size x size: halved by a box filter while its shorter side is at least twice
// that, then scaled by a bicubic filter until the shorter side fits, then cropped.
Picture crop_to_square(Picture picture, int size);

}  // namespace dtopp
