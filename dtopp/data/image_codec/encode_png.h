// Encodes pictures as PNG files without compression, which are fast to write and to read.
#pragma once

#include <string>

#include "dtopp/data/image_codec/picture.h"

namespace dtopp::data {

// Returns a PNG file of 8 bits per channel. Precondition: the picture has 1 or 3 channels and at least one
// pixel.
std::string encode_png(const Picture& picture);

}  // namespace dtopp::data
