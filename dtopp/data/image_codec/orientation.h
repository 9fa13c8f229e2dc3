// Reads the orientation in Exif data, which cameras write, and turns pictures upright.
#pragma once

#include <cstddef>
#include <span>

#include "dtopp/data/image_codec/picture.h"

namespace dtopp::data {

// Returns the Exif orientation, from 1 (upright) to 8; 1 if the data are damaged or hold no orientation.
// `exif` is a TIFF header with its directories, with or without "Exif\0\0" before it.
int exif_orientation(std::span<const std::byte> exif);

// Returns the picture, turned and mirrored from `orientation` (1 to 8) to upright.
Picture turn_upright(Picture picture, int orientation);

}  // namespace dtopp::data
