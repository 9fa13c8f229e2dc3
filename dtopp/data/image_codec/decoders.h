// One decoder a format; what each leaves to decode_picture() is the orientation.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "dtopp/data/image_codec/picture.h"

namespace dtopp {

struct RawPicture {
  Picture picture;      // grey or RGB, as it is stored
  int orientation = 1;  // of Exif, 1 to 8
};

// DataError as decode_picture().
RawPicture decode_jpeg(std::span<const std::byte> file);
RawPicture decode_png(std::span<const std::byte> file);
RawPicture decode_webp(std::span<const std::byte> file);

// Errors say how large it claims to be.
void require_size(uint64_t height, uint64_t width);

}  // namespace dtopp
