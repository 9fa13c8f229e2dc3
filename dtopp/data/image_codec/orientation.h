// The orientation that cameras write into Exif data, and the turn it asks for.
#pragma once

#include <cstddef>
#include <span>

#include "dtopp/data/image_codec/picture.h"

namespace dtopp {

// 1 (upright) to 8 as Exif counts; 1 where the data are damaged or do not say. `exif` is a TIFF header with
// its directories, with or without "Exif\0\0" before it.
int exif_orientation(std::span<const std::byte> exif);

// The picture as it is meant to be seen.
Picture turn_upright(Picture picture, int orientation);

}  // namespace dtopp
