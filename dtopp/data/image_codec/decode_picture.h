// JPEG, PNG and WebP files in memory to pictures, upright and in the channels asked for.
//
// What Pillow's convert("RGB") or convert("L") gives, after ImageOps.exif_transpose: an orientation in the
// file's Exif data is applied; an alpha channel is dropped; palettes become their colours; of 16 bits the
// high eight are kept; CMYK turns into RGB by multiplication; of an animation the first frame is taken.
// Colour profiles and gamma do not enter.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "dtopp/base/errors.h"
#include "dtopp/data/image_codec/picture.h"

namespace dtopp {

enum class PictureFormat { kJpeg, kPng, kWebp };

struct DecodedPicture {
  Picture picture;
  PictureFormat format;
  bool was_turned = false;  // the file's orientation was not upright
};

// `channels` is 1 or 3. DataError with the cause alone (whoever calls knows the name) for what is no picture,
// is damaged or cut, or has more than kMaxPixels. Called by many threads at once.
DecodedPicture decode_picture(std::span<const std::byte> file, int channels);

// A PNG file without compression, which is quick to write and to read.
std::string encode_png(const Picture& picture);

}  // namespace dtopp
