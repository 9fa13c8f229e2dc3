// Declares one decoder per format. decode_picture() applies the orientation.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "dtopp/data/image_codec/picture.h"

namespace dtopp::data {

struct RawPicture {
  Picture picture;      // grey or RGB, as stored
  int orientation = 1;  // the orientation in the Exif data, 1 to 8
};

// Throw DataError as decode_picture() does.
RawPicture decode_jpeg(std::span<const std::byte> file);
RawPicture decode_png(std::span<const std::byte> file);
RawPicture decode_webp(std::span<const std::byte> file);

// Throws DataError if a side is 0 or exceeds kMaxSide, or if the pixels exceed kMaxPixels. If the picture is
// too large, the message states the declared size.
void require_size(uint64_t height, uint64_t width);

}  // namespace dtopp::data
